import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request and reply: one asks till it has {@code count} replies, another answers till the file {@code stop} is there. */
final class Requests {
    private Requests() {}

    static void ask(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group", null));
        producer.setNamesrvAddr(options.text("namesrv", null));
        producer.setPollNameServerInterval(options.number("poll_ms", 30_000));
        producer.start();
        Path stop = Path.of(options.text("stop", "/nowhere"));
        try (Report report = new Report(options.text("out", null))) {
            for (int i = 0; i < options.number("count", 1) && !Files.exists(stop); i++) {
                Message request = Samples.message(options.text("topic", null), options.text("kind", "request"), i);
                try {
                    Message reply = producer.request(request, options.number("timeout_ms", 10_000));
                    report.line(
                            "number", i,
                            "status", "OK",
                            "reply", new String(reply.getBody(), StandardCharsets.UTF_8),
                            "topic", reply.getTopic());
                } catch (Exception error) {
                    report.line("number", i, "status", "ERROR", "error", String.valueOf(error));
                }
                Thread.sleep(options.number("pause_ms", 0));
            }
        }
        producer.shutdown();
    }

    static void answer(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group", null) + "Repliers");
        producer.setNamesrvAddr(options.text("namesrv", null));
        producer.setPollNameServerInterval(options.number("poll_ms", 30_000));
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group", null));
        consumer.setNamesrvAddr(options.text("namesrv", null));
        consumer.setPollNameServerInterval(options.number("poll_ms", 30_000));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic", null), "*");
        Path stop = Path.of(options.text("stop", null));
        try (Report report = new Report(options.text("out", null))) {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    reply(producer, message, report);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            report.line("event", "started");
            while (!Files.exists(stop)) {
                Thread.sleep(20);
            }
            consumer.shutdown();
        }
        producer.shutdown();
    }

    private static void reply(DefaultMQProducer producer, MessageExt message, Report report) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        try {
            Message reply = MessageUtil.createReplyMessage(message, ("re: " + body).getBytes(StandardCharsets.UTF_8));
            SendResult result = producer.send(reply, 3000);
            report.line(
                    "event", "replied",
                    "body", body,
                    "status", result.getSendStatus().name(),
                    "offset", result.getQueueOffset());
        } catch (Exception error) {
            report.line("event", "failed", "body", body, "error", String.valueOf(error));
        }
    }
}
