import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * The stock Java producer under load; prints WARM and END around what counts, and one JSON line.
 *
 * <p>Options NAME=VALUE: namesrv, topic, threads (sync, one send in flight each) or in_flight (async), size, seconds,
 * warmup_s.
 */
public final class Load {
    private final Options options;
    private final Figures figures = new Figures();
    private final LongAdder acknowledged = new LongAdder();
    private final DefaultMQProducer producer;
    private final String topic;
    private final byte[] body;
    private final long warm;
    private final long end;

    private Load(Options options) throws Exception {
        this.options = options;
        topic = options.text("topic");
        body = options.body();
        producer = options.producer();
        options.sendFirst(producer, body);
        acknowledged.increment();
        warm = System.nanoTime() + options.nanos("warmup_s", 3);
        end = warm + options.nanos("seconds", 8);
        Options.markWindow(warm, end);
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Load load = new Load(options);
        if (options.has("threads")) {
            load.sync(options.number("threads", 64));
        } else {
            load.async(options.number("in_flight", 2000));
        }
        double seconds = options.nanos("seconds", 8) / (double) Options.NANOS;
        System.out.printf("{%s,\"acknowledged\":%d}%n", load.figures.json(seconds), load.acknowledged.sum());
        System.exit(0); // the client leaves threads behind
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
                took(started, producer.send(new Message(topic, body)));
            } catch (Exception error) {
                figures.failed(error);
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
                figures.failed(error);
            }
        }
        window.acquire(inFlight);
    }

    private SendCallback callback(long started, Semaphore window) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                took(started, result);
                window.release();
            }

            @Override
            public void onException(Throwable error) {
                figures.failed(error);
                window.release();
            }
        };
    }

    /** What was in flight when the window began counts too: else a slow side would be slower by all of it. */
    private void took(long started, SendResult result) {
        long now = System.nanoTime();
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            figures.failed(result.getSendStatus());
            return;
        }
        acknowledged.increment();
        if (now >= warm && now <= end) {
            figures.took(now - started);
        }
    }
}
