import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** NAME=VALUE arguments, and the stock clients set up in the one way that all programs here share. */
final class Options {
    static final long NANOS = 1_000_000_000L;
    private static final int FIRST_TRIES = 100;

    private final Map<String, String> values = new HashMap<>();

    Options(String[] arguments) {
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            values.put(argument.substring(0, split), argument.substring(split + 1));
        }
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    String text(String name) {
        return values.get(name);
    }

    int number(String name, int fallback) {
        return Integer.parseInt(values.getOrDefault(name, Integer.toString(fallback)));
    }

    long nanos(String name, double fallbackSeconds) {
        return (long) (Double.parseDouble(values.getOrDefault(name, Double.toString(fallbackSeconds))) * NANOS);
    }

    byte[] body() {
        byte[] body = new byte[number("size", 1024)];
        Arrays.fill(body, (byte) 'x');
        return body;
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

    /** Prints WARM when what counts begins and END when it ends, both as {@link System#nanoTime}. */
    static void markWindow(long warm, long end) {
        Thread marker = new Thread(() -> {
            markAt("WARM", warm);
            markAt("END", end);
        });
        marker.setDaemon(true);
        marker.start();
    }

    private static void markAt(String mark, long nanos) {
        while (System.nanoTime() < nanos) {
            LockSupport.parkNanos(nanos - System.nanoTime());
        }
        System.out.println(mark);
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
