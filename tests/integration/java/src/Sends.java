import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends at and over the limits, one case a line: where the message is, or the code it was refused with. */
final class Sends {
    private static final int BODY_MAX = 4 * 1024 * 1024;
    private static final int PROPERTY_MAX = 30_000;
    private final Options options;
    private final String topic;
    private final Report report;
    private DefaultMQProducer producer;

    Sends(Options options) throws Exception {
        this.options = options;
        topic = options.text("topic", null);
        report = new Report(options.text("out", null));
    }

    void run() throws Exception {
        producer = producer("Plain");
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        for (MessageQueue queue : queues) {
            attempt("queue " + queue.getQueueId(), () -> producer.send(message("queue", queue.getQueueId()), queue));
        }
        attempt("largest", () -> producer.send(new Message(topic, "TagA", "largest", noise(BODY_MAX)), 10_000));
        attempt("too large", () -> producer.send(new Message(topic, "TagA", "big", noise(BODY_MAX + 1)), 10_000));
        attempt("many properties", () -> producer.send(withProperty(PROPERTY_MAX)));
        attempt("too many properties", () -> producer.send(withProperty(33_000)));
        attempt("batch", () -> producer.send(batch(50)));
        attempt("batch to a queue", () -> producer.send(batch(5), queues.get(1)));
        attempt("read only", () -> producer.send(new Message(options.text("readonly", null), "TagA", "k", noise(9))));
        attempt("of a type", () -> producer.send(new Message(options.text("typed", null), "TagA", "k", noise(9))));
        attempt("no such queue", () -> producer.send(message("none", 0), beyond(queues.get(0))));
        attempt("system topic", () -> producer.send(new Message("SCHEDULE_TOPIC_XXXX", "TagA", "k", noise(9))));
        attempt("empty batch property", () -> producer.send(batch(1)));
        view();
        producer.shutdown();
        compressed();
        report.close();
    }

    /** Bodies that the client compresses, in every way it knows. */
    private void compressed() throws Exception {
        for (String type : options.text("compressions", "ZLIB").split(",")) {
            DefaultMQProducer compressing = producer(type);
            if (!type.equals("ZLIB")) {
                Class<?> kind = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
                Object value = kind.getMethod("valueOf", String.class).invoke(null, type);
                DefaultMQProducer.class.getMethod("setCompressType", kind).invoke(compressing, value);
            }
            compressing.start();
            attempt("compressed " + type, () -> compressing.send(Samples.message(topic, "large", type.length())));
            compressing.shutdown();
        }
    }

    /** A message is found by the id that its answer named. */
    private void view() throws Exception {
        SendResult sent = producer.send(message("viewed", 1));
        MessageExt found = producer.viewMessage(topic, sent.getOffsetMsgId());
        report.line(
                "case", "viewed",
                "body", new String(found.getBody(), "UTF-8"),
                "same_id", String.valueOf(sent.getMsgId().equals(found.getProperty(
                        MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX))),
                "queue", found.getQueueId(),
                "offset", found.getQueueOffset(),
                "sent_queue", sent.getMessageQueue().getQueueId(),
                "sent_offset", sent.getQueueOffset());
    }

    private DefaultMQProducer producer(String name) {
        DefaultMQProducer made = new DefaultMQProducer(options.text("group", null) + name);
        options.connect(made);
        made.setInstanceName(name + System.nanoTime());
        made.setSendMsgTimeout(10_000);
        made.setMaxMessageSize(2 * BODY_MAX);
        return made;
    }

    private Message message(String kind, int number) throws Exception {
        return Samples.message(topic, kind, number);
    }

    private List<Message> batch(int count) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            messages.add(message("batch" + count, i));
        }
        return messages;
    }

    private Message withProperty(int chars) throws Exception {
        Message message = message("property", chars);
        char[] text = new char[chars];
        Arrays.fill(text, 'x');
        message.putUserProperty("long", new String(text));
        return message;
    }

    private static MessageQueue beyond(MessageQueue queue) {
        return new MessageQueue(queue.getTopic(), queue.getBrokerName(), 99);
    }

    private static byte[] noise(int size) {
        byte[] bytes = new byte[size];
        new Random(size).nextBytes(bytes);
        return bytes;
    }

    private void attempt(String name, Callable<SendResult> send) {
        try {
            SendResult result = send.call();
            report.line(
                    "case", name,
                    "status", result.getSendStatus().name(),
                    "queue", result.getMessageQueue().getQueueId(),
                    "offset", result.getQueueOffset(),
                    "id", result.getMsgId(),
                    "offset_id", result.getOffsetMsgId());
        } catch (MQBrokerException error) {
            report.line("case", name, "code", error.getResponseCode(), "words", error.getErrorMessage());
        } catch (MQClientException error) {
            report.line("case", name, "client_code", error.getResponseCode(), "words", error.getErrorMessage());
        } catch (Exception error) {
            report.line("case", name, "error", String.valueOf(error));
        }
    }
}
