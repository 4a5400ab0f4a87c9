import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes till {@code count} messages are there, the file {@code stop}, if one is named, and none came for {@code quiet_ms};
 * or till {@code limit_ms}.
 */
final class Consume {
    private final Options options;
    private final AtomicInteger count = new AtomicInteger();
    private final AtomicLong lastNanos = new AtomicLong(System.nanoTime());

    Consume(Options options) {
        this.options = options;
    }

    void run() throws Exception {
        if (options.isSet("lite")) {
            runLite();
            return;
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
                options.text("group", null), options.hook(), new AllocateMessageQueueAveragely());
        options.connect(consumer);
        consumer.setMaxReconsumeTimes(options.number("max_reconsume_times", -1));
        // The first heartbeat makes the group's retry topic: its route is looked for anew, by default after 30 s.
        consumer.setPollNameServerInterval(options.number("poll_ms", 1_000));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (options.text("sql", "").isEmpty()) {
            consumer.subscribe(options.text("topic", null), options.text("expression", "*"));
        } else {
            consumer.subscribe(options.text("topic", null), MessageSelector.bySql(options.text("sql", null)));
        }
        try (Report report = new Report(options.text("out", null))) {
            listen(consumer, report);
            try {
                consumer.start();
            } catch (MQClientException error) {
                report.line("refused", error.getResponseCode(), "words", error.getErrorMessage());
                return;
            }
            await();
            consumer.shutdown(); // commits the offsets
        }
    }

    /** The same with the consumer that asks for messages itself, and brings its expression along with every pull. */
    private void runLite() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group", null));
        options.connect(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic", null), MessageSelector.bySql(options.text("sql", null)));
        try (Report report = new Report(options.text("out", null))) {
            consumer.start();
            long endNanos = System.nanoTime() + options.number("limit_ms", 60_000) * 1_000_000L;
            do {
                record(report, consumer.poll(500));
            } while (System.nanoTime() < endNanos && !isDone());
            consumer.shutdown();
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
        long endNanos = System.nanoTime() + options.number("limit_ms", 60_000) * 1_000_000L;
        while (System.nanoTime() < endNanos) {
            if (isDone()) {
                return;
            }
            Thread.sleep(20);
        }
    }

    private boolean isDone() {
        long quietNanos = options.number("quiet_ms", 2000) * 1_000_000L;
        String stop = options.text("stop", "");
        return count.get() >= options.number("count", 0)
                && (stop.isEmpty() || Files.exists(Path.of(stop)))
                && System.nanoTime() - lastNanos.get() >= quietNanos;
    }
}
