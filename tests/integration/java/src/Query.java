import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Does what a file says, a step a line, its words divided by tabs: {@code send TOPIC KEYS BODY}, {@code key TOPIC KEY
 * MAX BEGIN END}, {@code view TOPIC ID} (of either kind), {@code bounds TOPIC QUEUE}, {@code time TOPIC QUEUE MS}. One
 * line of the report for each message sent or found, each answer and each refusal.
 */
final class Query {
    private final DefaultMQProducer producer;
    private final Report report;

    private Query(DefaultMQProducer producer, Report report) {
        this.producer = producer;
        this.report = report;
    }

    static void run(Options options) throws Exception {
        boolean isTraced = options.isSet("trace");
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group", null), isTraced, null);
        options.connect(producer);
        producer.start();
        try (Report report = new Report(options.text("out", null))) {
            Query query = new Query(producer, report);
            int step = 0;
            for (String line : Files.readAllLines(Path.of(options.text("steps", null)), StandardCharsets.UTF_8)) {
                query.step(step++, line.split("\t", -1));
            }
        }
        if (isTraced) {
            // The trace leaves by other threads. shutdown() gives them half a second, too little on a busy machine.
            Thread.sleep(3000);
        }
        producer.shutdown();
    }

    private void step(int number, String[] words) throws Exception {
        try {
            switch (words[0]) {
                case "send":
                    sent(number, words);
                    break;
                case "key":
                    long begin = Long.parseLong(words[4]);
                    long end = Long.parseLong(words[5]);
                    found(number, producer.queryMessage(words[1], words[2], Integer.parseInt(words[3]), begin, end)
                            .getMessageList());
                    break;
                case "view":
                    List<MessageExt> one = new ArrayList<>();
                    one.add(producer.viewMessage(words[1], words[2]));
                    found(number, one);
                    break;
                case "bounds":
                    bounds(number, queue(words));
                    break;
                case "time":
                    long offset = producer.searchOffset(queue(words), Long.parseLong(words[3]));
                    report.line("step", number, "offset", offset);
                    break;
                default:
                    throw new IllegalArgumentException("unknown step " + words[0]);
            }
        } catch (MQClientException error) {
            report.line("step", number, "refused", error.getResponseCode(), "words", error.getMessage());
        } catch (MQBrokerException error) {
            report.line("step", number, "refused", error.getResponseCode(), "words", error.getErrorMessage());
        }
    }

    private void sent(int number, String[] words) throws Exception {
        Message message = new Message(words[1], "TagA", words[2], words[3].getBytes(StandardCharsets.UTF_8));
        SendResult result = producer.send(message);
        report.line(
                "step", number,
                "id", result.getMsgId(),
                "offset_id", result.getOffsetMsgId(),
                "queue", result.getMessageQueue().getQueueId(),
                "offset", result.getQueueOffset());
    }

    private void found(int number, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            if (message == null) {
                report.line("step", number, "refused", 0, "words", "nothing");
                continue;
            }
            report.line(
                    "step", number,
                    "id", message.getMsgId(),
                    "topic", message.getTopic(),
                    "keys", message.getKeys(),
                    "queue", message.getQueueId(),
                    "offset", message.getQueueOffset(),
                    "stored_ms", message.getStoreTimestamp(),
                    "body", new String(message.getBody(), StandardCharsets.UTF_8));
        }
    }

    private void bounds(int number, MessageQueue queue) throws Exception {
        report.line(
                "step", number,
                "min", producer.minOffset(queue),
                "max", producer.maxOffset(queue),
                "earliest_ms", producer.earliestMsgStoreTime(queue));
    }

    private MessageQueue queue(String[] words) throws Exception {
        int id = Integer.parseInt(words[2]);
        for (MessageQueue queue : producer.fetchPublishMessageQueues(words[1])) {
            if (queue.getQueueId() == id) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + id);
    }
}
