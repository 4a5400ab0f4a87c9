import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;

/**
 * Sends until the file {@code stop} appears, and writes down every acknowledgement and every error. It pauses about as
 * long as a send takes on a busy machine: without a pause it would itself keep the machine busy.
 */
final class Stream {
    private static final int PAUSE_MS = 10;

    private final Options options;

    Stream(Options options) {
        this.options = options;
    }

    void run() throws Exception {
        String topic = options.text("topic", null);
        Path stop = Path.of(options.text("stop", null));
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group", null), options.hook());
        producer.setNamesrvAddr(options.text("namesrv", null));
        producer.setPollNameServerInterval(options.number("poll_ms", 1000));
        producer.setSendMsgTimeout((int) options.number("timeout_ms", 1000));
        // A repeated send may be stored twice: each number is sent once, unless an option allows more.
        producer.setRetryTimesWhenSendFailed((int) options.number("retries", 0));
        producer.start();
        try (Report report = new Report(options.text("out", null))) {
            for (int i = 0; !Files.exists(stop); i++) {
                long began = System.nanoTime();
                try {
                    SendResult result = producer.send(Samples.message(topic, "stream", i));
                    report.line(
                            "number", i,
                            "status", result.getSendStatus().name(),
                            "queue", result.getMessageQueue().getQueueId(),
                            "offset", result.getQueueOffset(),
                            "took_us", (System.nanoTime() - began) / 1000,
                            "at_ms", System.currentTimeMillis());
                } catch (Exception error) {
                    report.line("number", i, "status", "ERROR", "error", String.valueOf(error.getMessage()),
                            "at_ms", System.currentTimeMillis());
                }
                Thread.sleep(PAUSE_MS);
            }
        }
        producer.shutdown();
    }
}
