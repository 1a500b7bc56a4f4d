"""Amazon SQS with its JSON protocol: a queue is a topic with the group `sqs`.

`signature` authenticates requests, `queues` has the queues, `messages` the format of messages, and
`actions` the operations.
"""
