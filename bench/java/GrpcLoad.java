import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The stock Java producer for gRPC under load; prints WARM and END around what counts, and one JSON line.
 *
 * <p>Options NAME=VALUE: endpoint, tls, topic, threads (sync, one send in flight each) or in_flight (async), size,
 * seconds, warmup_s. The warm-up is sent by 64 threads whatever is measured: one thread alone would take an hour to
 * get the servers as warm.
 */
public final class GrpcLoad {
    private static final int WARMUP_THREADS = 64;
    private static final long SETTLE_NANOS = Arguments.NANOS;

    private final GrpcOptions options;
    private final Figures figures = new Figures();
    private final LongAdder acknowledged = new LongAdder();
    private final Producer producer;
    private final byte[] body;
    private final long switched;
    private final long warm;
    private final long end;

    private GrpcLoad(GrpcOptions options) throws Exception {
        this.options = options;
        body = options.body();
        producer = options.producer();
        options.sendFirst(producer, body);
        acknowledged.increment();
        switched = System.nanoTime() + options.nanos("warmup_s", 3);
        warm = switched + SETTLE_NANOS;
        end = warm + options.nanos("seconds", 8);
        Arguments.markWindow(warm, end);
    }

    public static void main(String[] arguments) throws Exception {
        GrpcOptions options = new GrpcOptions(arguments);
        GrpcLoad load = new GrpcLoad(options);
        load.sync(WARMUP_THREADS, load.switched);
        if (options.has("threads")) {
            load.sync(options.number("threads", 64), load.end);
        } else {
            load.async(options.number("in_flight", 1000));
        }
        double seconds = options.nanos("seconds", 8) / (double) Arguments.NANOS;
        System.out.printf("{%s,\"acknowledged\":%d}%n", load.figures.json(seconds), load.acknowledged.sum());
        System.exit(0); // the client leaves threads behind
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
                failed(started, error);
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
                    failed(started, error);
                }
                window.release();
            });
        }
        window.acquire(inFlight);
    }

    private void took(long started) {
        long now = System.nanoTime();
        acknowledged.increment();
        if (started >= warm && now <= end) {
            figures.took(now - started);
        }
    }

    private void failed(long started, Throwable error) {
        if (started >= warm) {
            figures.failed(error);
        }
    }
}
