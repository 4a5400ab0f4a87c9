"""The endpoint for RocketMQ 5's gRPC clients: what RocketMQ's proxy does, as a process beside the brokers.

A call arrives decoded at one of the features (`routes`, `sending`, `receiving`, `transactions`, `offsets`,
`telemetry`), which sends requests of the Remoting protocol to the brokers and returns the answer's message.
Only `server` knows grpc: another transport replaces that one module.

The process keeps nothing that a client needs after a failure. A receipt handle and a transaction id say where
their message is; offsets, transactions and invisible messages are in the brokers' log. What it does keep,
clients' settings and the handles that it renews for push consumers, a client sends again when it connects to
another endpoint.
"""
