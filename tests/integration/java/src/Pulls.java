import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The consumers that ask for messages themselves: by hand, and the lite one that is told where to begin. */
final class Pulls {
    private final Options options;
    private final String topic;
    private final Report report;

    Pulls(Options options) throws Exception {
        this.options = options;
        topic = options.text("topic", null);
        report = new Report(options.text("out", null));
    }

    void run() throws Exception {
        byHand();
        int seek = options.number("seek", 3);
        lite("first", seek, true);
        lite("committed", -1, false);
        report.close();
    }

    @SuppressWarnings("deprecation")
    private void byHand() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group", null) + "Pull");
        options.connect(consumer);
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long end = consumer.maxOffset(queue);
            report.line(
                    "case", "bounds",
                    "queue", queue.getQueueId(),
                    "min", consumer.minOffset(queue),
                    "max", end,
                    "first_by_time", consumer.searchOffset(queue, 0L),
                    "last_by_time", consumer.searchOffset(queue, System.currentTimeMillis() + 60_000));
            pull(consumer, "first", queue, 0);
            pull(consumer, "end", queue, end);
            pull(consumer, "beyond", queue, end + 10);
            consumer.updateConsumeOffset(queue, end);
        }
        consumer.shutdown();
    }

    @SuppressWarnings("deprecation")
    private void pull(DefaultMQPullConsumer consumer, String name, MessageQueue queue, long offset) throws Exception {
        PullResult result = consumer.pull(queue, "*", offset, 32);
        report.line(
                "case", name,
                "queue", queue.getQueueId(),
                "status", result.getPullStatus().name(),
                "next", result.getNextBeginOffset(),
                "min", result.getMinOffset(),
                "max", result.getMaxOffset(),
                "count", result.getMsgFoundList() == null ? 0 : result.getMsgFoundList().size());
    }

    /** Reads one queue to its end, from an offset that it sets or from what the group has committed. */
    private void lite(String name, long offset, boolean commitsHalf) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group", null) + "Lite");
        options.connect(consumer);
        consumer.setInstanceName(name + System.nanoTime());
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(1);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        MessageQueue queue = Collections.min(queues);
        consumer.assign(Collections.singletonList(queue));
        if (offset >= 0) {
            Thread.sleep(500); // what the client has asked for before it seeks it may yet hand out
            consumer.seek(queue, offset);
        }
        int taken = 0;
        int wanted = options.number("lite_count", 4);
        long endNanos = System.nanoTime() + 20_000_000_000L;
        while (taken < wanted && System.nanoTime() < endNanos) {
            List<MessageExt> messages = consumer.poll(500);
            for (MessageExt message : messages) {
                taken++;
                report.line(
                        "case", "lite " + name,
                        "queue", message.getQueueId(),
                        "offset", message.getQueueOffset(),
                        "body", new String(message.getBody(), StandardCharsets.UTF_8));
            }
        }
        if (commitsHalf) {
            consumer.commitSync();
            report.line("case", "lite committed", "offset", consumer.committed(queue));
        }
        consumer.shutdown();
    }
}
