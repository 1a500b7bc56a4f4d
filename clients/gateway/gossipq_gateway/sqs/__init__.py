"""Amazon SQS, its JSON protocol: a queue is a topic with the group `sqs`. `signature` knows who asks,
`queues` what queues there are, `messages` what a message looks like, `actions` what is done."""
