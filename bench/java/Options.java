import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The stock remoting clients, set up in the one way that all programs here share. */
final class Options extends Arguments {
    private static final int FIRST_TRIES = 100;

    Options(String[] arguments) {
        super(arguments);
    }

    /** Retries off, so that a send is one send; no compression, so that a body has the size it has. */
    DefaultMQProducer producer() throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer("bench_p" + System.nanoTime());
        producer.setNamesrvAddr(text("namesrv"));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setSendMsgTimeout(number("timeout_ms", 10_000));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setBackPressureForAsyncSendNum(20_000);
        producer.setPollNameServerInterval(number("route_poll_ms", 30_000));
        producer.start();
        return producer;
    }

    DefaultMQPushConsumer consumer() throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_c" + System.nanoTime());
        consumer.setNamesrvAddr(text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(text("topic"), "*");
        return consumer;
    }

    /** Sends until one message is taken, which also makes the topic. */
    void sendFirst(DefaultMQProducer producer, byte[] body) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                SendResult result = producer.send(new Message(text("topic"), body));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    return;
                }
            } catch (Exception error) {
                if (tries == FIRST_TRIES) {
                    throw error;
                }
            }
            Thread.sleep(200);
        }
    }
}
