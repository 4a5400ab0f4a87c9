import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Several push consumers of one group in one process, each with a connection of its own. They run till the file {@code
 * stop} is there; with the file {@code pause} the first one is suspended until it is gone, with {@code leave} the last
 * one shuts down.
 */
final class Consumers {
    private final Options options;
    private final Report report;
    private final List<DefaultMQPushConsumer> members = new ArrayList<>();
    private final Set<String> suspendedOnce = ConcurrentHashMap.newKeySet();

    Consumers(Options options) throws Exception {
        this.options = options;
        report = new Report(options.text("out", null));
    }

    void run() throws Exception {
        for (int i = 0; i < options.number("members", 1); i++) {
            members.add(start(i));
        }
        report.line("event", "started");
        Path stop = Path.of(options.text("stop", null));
        boolean isPaused = false;
        while (!Files.exists(stop)) {
            boolean pauses = exists("pause");
            if (pauses != isPaused) {
                isPaused = pauses;
                if (pauses) {
                    members.get(0).suspend();
                } else {
                    members.get(0).resume();
                }
                report.line("event", pauses ? "suspended" : "resumed");
            }
            if (exists("leave") && members.size() > 1) {
                members.remove(members.size() - 1).shutdown();
                report.line("event", "left");
                Files.delete(Path.of(options.text("leave", null)));
            }
            Thread.sleep(20);
        }
        for (DefaultMQPushConsumer member : members) {
            member.shutdown();
        }
        report.close();
    }

    private boolean exists(String name) {
        return options.isGiven(name) && Files.exists(Path.of(options.text(name, null)));
    }

    private DefaultMQPushConsumer start(int number) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
                options.text("group", null), options.isSet("trace"), null);
        options.connect(consumer);
        consumer.setInstanceName("member" + number + "-" + System.nanoTime());
        consumer.setPollNameServerInterval(options.number("poll_ms", 1_000));
        consumer.setHeartbeatBrokerInterval(options.number("poll_ms", 1_000));
        consumer.setPersistConsumerOffsetInterval(1_000);
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        consumer.setSuspendCurrentQueueTimeMillis(options.number("suspend_ms", 100));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(options.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        if (options.isGiven("timestamp")) {
            consumer.setConsumeTimestamp(options.text("timestamp", null));
        }
        if (options.isSet("broadcasting")) {
            DefaultMQPushConsumer.class.getMethod("setMessageModel", model()).invoke(consumer, broadcasting());
        }
        consumer.subscribe(options.text("topic", null), options.text("expression", "*"));
        if (options.isSet("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> inOrder(number, messages));
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                record(number, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        return consumer;
    }

    /** With {@code suspend_every=N} every Nth message is put off once, and must come again before any behind it. */
    private ConsumeOrderlyStatus inOrder(int number, List<MessageExt> messages) {
        int every = options.number("suspend_every", 0);
        for (MessageExt message : messages) {
            String place = message.getQueueId() + "-" + message.getQueueOffset();
            if (every > 0 && message.getQueueOffset() % every == 0 && suspendedOnce.add(place)) {
                report.line("event", "put off", "queue", message.getQueueId(), "offset", message.getQueueOffset());
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
        }
        record(number, messages);
        return ConsumeOrderlyStatus.SUCCESS;
    }

    private void record(int number, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            report.line(
                    "member", number,
                    "together", messages.size(),
                    "queue", message.getQueueId(),
                    "offset", message.getQueueOffset(),
                    "body", new String(message.getBody(), StandardCharsets.UTF_8),
                    "keys", message.getKeys(),
                    "tags", message.getTags(),
                    "number", message.getUserProperty("number"),
                    "word", message.getUserProperty("word"),
                    "reconsume_times", message.getReconsumeTimes(),
                    "topic", message.getTopic(),
                    "born_ms", message.getBornTimestamp(),
                    "at_ms", System.currentTimeMillis());
        }
    }

    /** The class stands in different packages in 4.9 and 5. */
    private static Class<?> model() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel");
        } catch (ClassNotFoundException error) {
            return Class.forName("org.apache.rocketmq.common.protocol.heartbeat.MessageModel");
        }
    }

    private static Object broadcasting() throws ReflectiveOperationException {
        return model().getField("BROADCASTING").get(null);
    }
}
