"""The gateway: HTTP, Amazon SQS and protocols of older brokers, for clients without gossipq.

It converts their requests to publishes, fetches and acks, and checks who may use it. It talks to
the cluster through `gossipq_client`, and imports only the vocabulary besides (`gossipq.types`,
`values`, `errors`, `limits`, `permissions`, `clock`), never the core or a node. It stores no state:
after a restart, records in flight are redelivered when their leases end.

`dialect` is the interface of a protocol, `service` runs the gateway. Each dialect is a module
of its own: `v1` is the native HTTP API, `sqs` is Amazon SQS, `plugins` finds others,
`console` is the web console.
"""
