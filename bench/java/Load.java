import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * The stock Java producer under load; prints one JSON line.
 *
 * <p>Options NAME=VALUE: namesrv, topic, threads (sync, one send in flight each) or in_flight (async), size, seconds,
 * warmup_s. Nothing is sent twice: retries are off, a failed send counts as an error.
 */
public final class Load {
    private static final long NANOS = 1_000_000_000L;
    private static final int BUCKET_NANOS = 10_000;
    private static final int BUCKETS = 500_000; // up to 5 s

    private final Map<String, String> options;
    private final DefaultMQProducer producer = new DefaultMQProducer("bench" + System.nanoTime());
    private final AtomicLongArray latencies = new AtomicLongArray(BUCKETS);
    private final Map<String, Integer> errors = new TreeMap<>();
    private final String topic;
    private final byte[] body;
    private long warm;
    private long end;

    private Load(Map<String, String> options) {
        this.options = options;
        topic = options.getOrDefault("topic", "Bench");
        body = new byte[number("size", 1024)];
        Arrays.fill(body, (byte) 'x');
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            options.put(argument.substring(0, split), argument.substring(split + 1));
        }
        Load load = new Load(options);
        load.start();
        if (options.containsKey("threads")) {
            load.sync(load.number("threads", 64));
        } else {
            load.async(load.number("in_flight", 2000));
        }
        System.out.println(load.result());
        System.exit(0); // the client leaves threads behind
    }

    private int number(String name, int fallback) {
        return Integer.parseInt(options.getOrDefault(name, Integer.toString(fallback)));
    }

    private void start() throws Exception {
        producer.setNamesrvAddr(options.getOrDefault("namesrv", "127.0.0.1:9876"));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setSendMsgTimeout(10_000);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setBackPressureForAsyncSendNum(20_000);
        producer.start();
        for (int tries = 0; ; tries++) {
            try {
                producer.send(new Message(topic, body));
                break;
            } catch (Exception error) {
                if (tries == 50) {
                    throw error;
                }
                Thread.sleep(200);
            }
        }
        warm = System.nanoTime() + number("warmup_s", 3) * NANOS;
        end = warm + number("seconds", 8) * NANOS;
    }

    private void sync(int threads) throws InterruptedException {
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(this::sendSync);
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
    }

    private void sendSync() {
        for (long started = System.nanoTime(); started < end; started = System.nanoTime()) {
            try {
                SendResult result = producer.send(new Message(topic, body));
                took(started, result);
            } catch (Exception error) {
                failed(started, error);
            }
        }
    }

    private void async(int inFlight) throws InterruptedException {
        Semaphore window = new Semaphore(inFlight);
        while (System.nanoTime() < end) {
            window.acquire();
            long started = System.nanoTime();
            try {
                producer.send(new Message(topic, body), callback(started, window));
            } catch (Exception error) {
                window.release();
                failed(started, error);
            }
        }
        window.acquire(inFlight);
    }

    private SendCallback callback(long started, Semaphore window) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                window.release();
                took(started, result);
            }

            @Override
            public void onException(Throwable error) {
                window.release();
                failed(started, error);
            }
        };
    }

    private void took(long started, SendResult result) {
        long now = System.nanoTime();
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            failed(started, new IllegalStateException(result.getSendStatus().name()));
        } else if (started >= warm && now <= end) {
            latencies.incrementAndGet((int) Math.min((now - started) / BUCKET_NANOS, BUCKETS - 1));
        }
    }

    private synchronized void failed(long started, Throwable error) {
        if (started >= warm) {
            String text = String.valueOf(error.getMessage()).replaceAll("[^\\w :.,-]", "?");
            errors.merge(text.substring(0, Math.min(80, text.length())), 1, Integer::sum);
        }
    }

    private String result() {
        long messages = 0;
        for (int i = 0; i < BUCKETS; i++) {
            messages += latencies.get(i);
        }
        StringBuilder failures = new StringBuilder();
        errors.forEach((text, count) -> failures.append(failures.length() == 0 ? "" : ",")
                .append('"').append(text).append("\":").append(count));
        return String.format(
                "{\"messages\":%d,\"per_second\":%.1f,\"p50_ms\":%.2f,\"p99_ms\":%.2f,\"p999_ms\":%.2f,"
                        + "\"max_ms\":%.2f,\"errors\":{%s}}",
                messages, messages / (double) number("seconds", 8), percentile(messages, 0.5),
                percentile(messages, 0.99), percentile(messages, 0.999), percentile(messages, 1), failures);
    }

    private double percentile(long messages, double share) {
        long wanted = (long) Math.ceil(messages * share);
        long seen = 0;
        for (int i = 0; i < BUCKETS; i++) {
            seen += latencies.get(i);
            if (seen >= wanted && seen > 0) {
                return (i + 1) * BUCKET_NANOS / 1e6;
            }
        }
        return -1;
    }
}
