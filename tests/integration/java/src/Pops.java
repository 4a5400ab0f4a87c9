import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer whose queues the broker assigns, as it does for POP; consumes till the file {@code stop} is there.
 * Messages whose number {@code fail_every} divides fail the first time; after {@code hang_after} ones the listener
 * never returns, so that nothing of what it has is acknowledged.
 */
final class Pops {
    private final Options options;
    private int seen;

    Pops(Options options) {
        this.options = options;
    }

    void run() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group", null));
        options.connect(consumer);
        consumer.setPollNameServerInterval(options.number("poll_ms", 1000));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setInstanceName(options.text("instance", "pops"));
        set(consumer, "setClientRebalance", boolean.class, false);
        set(consumer, "setPopInvisibleTime", long.class, (long) options.number("invisible_ms", 60_000));
        set(consumer, "setPopBatchNums", int.class, options.number("batch", 32));
        consumer.subscribe(options.text("topic", null), options.text("expression", "*"));
        Path stop = Path.of(options.text("stop", null));
        int failEvery = options.number("fail_every", 0);
        int hangAfter = options.number("hang_after", Integer.MAX_VALUE);
        try (Report report = new Report(options.text("out", null))) {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean fails = false;
                for (MessageExt message : messages) {
                    int number = Integer.parseInt(message.getUserProperty("number"));
                    fails |= failEvery > 0 && number % failEvery == 0 && message.getReconsumeTimes() == 0;
                    record(report, message);
                }
                while (count(messages.size()) > hangAfter) {
                    sleep();
                }
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            report.line("event", "started");
            while (!Files.exists(stop)) {
                Thread.sleep(20);
            }
            consumer.shutdown();
        }
    }

    private synchronized int count(int more) {
        seen += more;
        return seen;
    }

    private static void sleep() {
        try {
            Thread.sleep(1_000_000);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void record(Report report, MessageExt message) {
        report.line(
                "event", "message",
                "queue", message.getQueueId(),
                "offset", message.getQueueOffset(),
                "body", new String(message.getBody(), StandardCharsets.UTF_8),
                "number", message.getUserProperty("number"),
                "tags", message.getTags(),
                "reconsume_times", message.getReconsumeTimes(),
                "topic", message.getTopic(),
                "handle", message.getProperty("POP_CK"));
    }

    /** These setters are in version 5 only, and the same sources are compiled against 4.9. */
    private static void set(DefaultMQPushConsumer consumer, String name, Class<?> type, Object value) throws Exception {
        consumer.getClass().getMethod(name, type).invoke(consumer, value);
    }
}
