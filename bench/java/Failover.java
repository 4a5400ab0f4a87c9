import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * The longest time between two acknowledgements of one sync producer. Prints READY when it has sent steadily for the
 * warm-up, which is the time to kill the leader, and one JSON line at the end.
 *
 * <p>Options NAME=VALUE: namesrv, topic, route_poll_ms, timeout_ms (of a send), size, warmup_s, seconds (after it).
 */
public final class Failover {
    private static final int STEADY = 50;
    private static final int PAUSE_MS = 10;

    private final Options options;
    private final Figures figures = new Figures();
    private long acknowledged;
    private long warm;
    private boolean isReady;
    private long last;
    private long gap;

    private Failover(Options options) {
        this.options = options;
    }

    public static void main(String[] arguments) throws Exception {
        Failover failover = new Failover(new Options(arguments));
        failover.run();
        System.out.println(failover.result());
        System.exit(0);
    }

    private void run() throws Exception {
        byte[] body = options.body();
        DefaultMQProducer producer = options.producer();
        options.sendFirst(producer, body);
        acknowledged = 1;
        warm = System.nanoTime() + options.nanos("warmup_s", 0);
        long end = warm + options.nanos("seconds", 30);
        while (System.nanoTime() < end) {
            try {
                SendResult result = producer.send(new Message(options.text("topic"), body));
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException(result.getSendStatus().name());
                }
                took(System.nanoTime());
            } catch (Exception error) {
                figures.failed(error);
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private void took(long now) {
        acknowledged++;
        if (isReady) {
            gap = Math.max(gap, now - last);
        } else if (acknowledged >= STEADY && now >= warm) {
            isReady = true;
            System.out.println("READY");
        }
        last = now;
    }

    private String result() {
        boolean hasRecovered = System.nanoTime() - last < 3 * Options.NANOS;
        return Figures.format("{\"gap_s\":%.3f,\"recovered\":%b,\"acknowledged\":%d,%s}",
                gap / (double) Options.NANOS, hasRecovered, acknowledged, figures.json(1));
    }
}
