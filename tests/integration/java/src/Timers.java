import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends timer messages as clients from version 5 on have them: {@code count} from {@code threads} threads, or till the
 * file {@code stop} appears. A message's number says how it names its time, which lies {@code delay_ms} to twice that
 * ahead; of every sixth, that it is recalled. The client is named by reflection only, since 4.9's has none of this.
 */
final class Timers {
    private static final int KINDS = 6;
    private static final int RECALLED = 5;
    private final Options options;
    private final Report report;
    private final AtomicInteger numbers = new AtomicInteger();

    private Timers(Options options, Report report) {
        this.options = options;
        this.report = report;
    }

    static void run(Options options) throws Exception {
        try (Report report = new Report(options.text("out", null))) {
            new Timers(options, report).run();
        }
    }

    private void run() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group", null));
        producer.setNamesrvAddr(options.text("namesrv", null));
        producer.setPollNameServerInterval(1000);
        producer.setSendMsgTimeout(3000);
        producer.setRetryTimesWhenSendFailed(0); // a repeated message is another one
        producer.start();
        refused(producer);
        ExecutorService senders = Executors.newFixedThreadPool(options.number("threads", 1));
        for (int i = 0; i < options.number("threads", 1); i++) {
            senders.submit(() -> sendOn(producer));
        }
        senders.shutdown();
        senders.awaitTermination(5, TimeUnit.MINUTES);
        producer.shutdown();
    }

    /** A time further ahead than the broker keeps messages for. */
    private void refused(DefaultMQProducer producer) throws Exception {
        Message message = Samples.message(options.text("topic", null), "refused", 0);
        set(message, "setDelayTimeSec", 4 * 86_400L);
        try {
            producer.send(message);
            report.line("event", "far", "code", 0);
        } catch (MQBrokerException error) {
            report.line("event", "far", "code", error.getResponseCode());
        }
    }

    private void sendOn(DefaultMQProducer producer) {
        String stop = options.text("stop", "");
        while (stop.isEmpty() || !Files.exists(Path.of(stop))) {
            int number = numbers.getAndIncrement();
            if (number >= options.number("count", Integer.MAX_VALUE)) {
                return;
            }
            try {
                send(producer, number);
                Thread.sleep(options.number("pause_ms", 0));
            } catch (Exception error) {
                report.line("event", "failed", "number", number, "error", error.toString());
            }
        }
    }

    private void send(DefaultMQProducer producer, int number) throws Exception {
        Message message = Samples.message(options.text("topic", null), "timer", number);
        long base = options.number("delay_ms", 1000);
        long delayMs = base + number * 37L % base;
        long now = System.currentTimeMillis();
        if (number % KINDS == 0) {
            delayMs = (delayMs + 999) / 1000 * 1000;
            set(message, "setDelayTimeSec", delayMs / 1000);
        } else if (number % KINDS == 1) {
            set(message, "setDelayTimeMs", delayMs);
        } else {
            set(message, "setDeliverTimeMs", now + delayMs);
        }
        SendResult sent = producer.send(message);
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(sent);
        report.line(
                "event", "sent",
                "number", number,
                "due", now + delayMs,
                "status", sent.getSendStatus().name(),
                "id", sent.getMsgId(),
                "handle", handle);
        if (number % KINDS == RECALLED) {
            recall(producer, number, (String) handle);
        }
    }

    private void recall(DefaultMQProducer producer, int number, String handle) throws Exception {
        Method recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        report.line("event", "recalling", "number", number);
        try {
            Object id = recall.invoke(producer, options.text("topic", null), handle);
            report.line("event", "recalled", "number", number, "id", id);
        } catch (InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    private static void set(Message message, String setter, long value) throws Exception {
        Message.class.getMethod(setter, long.class).invoke(message, value);
    }
}
