"""A report on topics: throughput, sizes, latency, top keys and tags, consumer lag, dead letters."""
