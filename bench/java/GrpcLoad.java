import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The stock Java producer for gRPC under load; prints WARM and END around what counts, and one JSON line.
 *
 * <p>Options NAME=VALUE: endpoint, tls, topic, threads (sync, one send in flight each) or in_flight (async), size,
 * seconds, warmup_s. The warm-up is sent by 64 threads whatever is measured, since one thread alone would hardly warm
 * the servers; 3 s of the load itself come between.
 */
public final class GrpcLoad {
    private static final int WARMUP_THREADS = 64;
    private static final long SETTLE_NANOS = 3 * Arguments.NANOS;

    private final GrpcOptions options;
    private final Figures figures = new Figures();
    private final LongAdder acknowledged = new LongAdder();
    private final Producer producer;
    private final byte[] body;
    private volatile long warm = Long.MAX_VALUE;
    private volatile long end;

    private GrpcLoad(GrpcOptions options) throws Exception {
        this.options = options;
        body = options.body();
        producer = options.producer();
        options.sendFirst(producer, body);
        acknowledged.increment();
    }

    public static void main(String[] arguments) throws Exception {
        GrpcOptions options = new GrpcOptions(arguments);
        GrpcLoad load = new GrpcLoad(options);
        load.sync(WARMUP_THREADS, System.nanoTime() + options.nanos("warmup_s", 3));
        load.begin();
        if (options.has("threads")) {
            load.sync(options.number("threads", 64), load.end);
        } else {
            load.async(options.number("in_flight", 1000));
        }
        double seconds = options.nanos("seconds", 8) / (double) Arguments.NANOS;
        System.out.printf("{%s,\"acknowledged\":%d}%n", load.figures.json(seconds), load.acknowledged.sum());
        System.exit(0); // the client leaves threads behind
    }

    private void begin() {
        long settled = System.nanoTime() + SETTLE_NANOS;
        end = settled + options.nanos("seconds", 8);
        warm = settled;
        Arguments.markWindow(settled, end);
    }

    private void sync(int threads, long until) throws InterruptedException {
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> sendSync(until));
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
    }

    private void sendSync(long until) {
        for (long started = System.nanoTime(); started < until; started = System.nanoTime()) {
            try {
                producer.send(options.message(body));
                took(started);
            } catch (Exception error) {
                failed(error);
            }
        }
    }

    private void async(int inFlight) throws InterruptedException {
        Semaphore window = new Semaphore(inFlight);
        while (System.nanoTime() < end) {
            window.acquire();
            long started = System.nanoTime();
            producer.sendAsync(options.message(body)).whenComplete((receipt, error) -> {
                if (error == null) {
                    took(started);
                } else {
                    failed(error);
                }
                window.release();
            });
        }
        window.acquire(inFlight);
    }

    /** What was in flight when the window began counts too: else a slow side would be slower by all of it. */
    private void took(long started) {
        long now = System.nanoTime();
        acknowledged.increment();
        if (now >= warm && now <= end) {
            figures.took(now - started);
        }
    }

    private void failed(Throwable error) {
        if (System.nanoTime() >= warm) {
            figures.failed(error);
        }
    }
}
