import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumes till {@code count} messages are there and none came for {@code quiet_ms}, or till {@code limit_ms}. */
final class Consume {
    private final Options options;
    private final AtomicInteger count = new AtomicInteger();
    private final AtomicLong lastNanos = new AtomicLong(System.nanoTime());

    Consume(Options options) {
        this.options = options;
    }

    void run() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group", null));
        consumer.setNamesrvAddr(options.text("namesrv", null));
        consumer.setMaxReconsumeTimes(options.number("max_reconsume_times", -1));
        consumer.setPollNameServerInterval(options.number("poll_ms", 30_000));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic", null), options.text("expression", "*"));
        try (Report report = new Report(options.text("out", null))) {
            listen(consumer, report);
            consumer.start();
            await();
            consumer.shutdown(); // commits the offsets
        }
    }

    private void listen(DefaultMQPushConsumer consumer, Report report) {
        int failures = options.number("failures", 0);
        if (options.isSet("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                record(report, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
            return;
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            record(report, messages);
            return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    private void record(Report report, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            report.line(
                    "queue", message.getQueueId(),
                    "offset", message.getQueueOffset(),
                    "body", new String(message.getBody(), StandardCharsets.UTF_8),
                    "keys", message.getKeys(),
                    "tags", message.getTags(),
                    "number", message.getUserProperty("number"),
                    "word", message.getUserProperty("word"),
                    "reconsume_times", message.getReconsumeTimes(),
                    "topic", message.getTopic());
            lastNanos.set(System.nanoTime());
            count.incrementAndGet();
        }
    }

    private void await() throws InterruptedException {
        int expected = options.number("count", 0);
        long quietNanos = options.number("quiet_ms", 2000) * 1_000_000L;
        long endNanos = System.nanoTime() + options.number("limit_ms", 60_000) * 1_000_000L;
        while (System.nanoTime() < endNanos) {
            if (count.get() >= expected && System.nanoTime() - lastNanos.get() >= quietNanos) {
                return;
            }
            Thread.sleep(20);
        }
    }
}
