"""The gateway: doors for those who speak HTTP, Amazon SQS or the wire of an older broker.

It decides how their words become publishes, fetches and acks, and who of them may come in. It asks the
cluster as any client does, over `gossipq_client`, and sees of the rest only the vocabulary (`gossipq.types`,
`values`, `errors`, `limits`, `permissions`, `clock`): never the core, never a node. It keeps nothing that a
restart would miss: what it held comes again by its lease.

`dialect` is the interface of what it speaks, `service` runs it. Each dialect is a module of its own: `v1` is
the native one, `sqs` that of Amazon SQS, `dialects` are those of older brokers, `console` is for people.
"""
