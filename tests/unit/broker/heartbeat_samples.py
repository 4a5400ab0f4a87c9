"""Heartbeat bodies as the three families of clients send them."""

CPP_CONSUMER = (
    b'{"clientID":"127.0.0.1@4711#DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
    b'"groupName":"CID","messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1700000000001",'
    b'"topic":"T"},{"subString":"*","subVersion":"1700000000002","topic":"%RETRY%CID"}]}]}\n'
)
CPP_PRODUCER = b'{"clientID":"127.0.0.1@4711#DEFAULT","producerDataSet":[{"groupName":"PID"}]}\n'
GO_CONSUMER = (
    b'{"clientID":"10.0.0.2@DEFAULT","producerDataSet":[],"consumerDataSet":[{"groupName":"CID",'
    b'"consumeType":"CONSUME_PASSIVELY","messageModel":"Clustering","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA || TagB",'
    b'"tagsSet":["TagA","TagB"],"codeSet":["2598919","2598920"],"subVersion":1700000000003000000,'
    b'"expressionType":"TAG"}],"unitMode":false}]}'
)
JAVA_CONSUMER = (
    b'{"clientID":"10.0.0.1@4711#99","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"CID","messageModel":"CLUSTERING","subscriptionDataSet":['
    b'{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA",'
    b'"subVersion":1700000000004,"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,'
    b'"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}'
)
