import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The stock simple consumer for gRPC drains a topic: each thread receives up to 32 messages and acknowledges each of
 * them, one after the other. Prints WARM and END around what counts, and one JSON line; its latencies are those of the
 * acknowledgements.
 *
 * <p>Options NAME=VALUE: endpoint, tls, topic and group (both new), count (messages that are sent before), threads, size,
 * warmup_s (so long it sends and drains before), idle_s (ends when nothing was acknowledged for so long).
 */
public final class GrpcDrain {
    private static final int BATCH = 32;
    private static final int SENDS_IN_FLIGHT = 500;
    private static final long PAUSE_NANOS = Arguments.NANOS / 20;
    private static final Duration INVISIBLE = Duration.ofSeconds(60);

    private final GrpcOptions options;
    private final Producer producer;
    private final SimpleConsumer consumer;
    private final long wanted;

    private GrpcDrain(GrpcOptions options) throws Exception {
        this.options = options;
        wanted = options.number("count", 10_000);
        producer = options.producer();
        consumer = options.consumer();
    }

    public static void main(String[] arguments) throws Exception {
        GrpcOptions options = new GrpcOptions(arguments);
        GrpcDrain drain = new GrpcDrain(options);
        drain.begin();
        long warm = System.nanoTime() + options.nanos("warmup_s", 3);
        while (System.nanoTime() < warm) {
            drain.send();
            Round round = drain.new Round();
            round.run();
            round.join();
        }
        drain.send();
        Round round = drain.new Round();
        System.out.println("WARM");
        round.run();
        System.out.println("END");
        System.out.println(round.result());
        System.exit(0);
    }

    /** The group has to be there before the messages are: a new one begins at the end of a long queue. */
    private void begin() throws Exception {
        Round round = new Round();
        while (round.acknowledged.get() == 0) {
            options.sendFirst(producer, options.body());
            round.receive();
        }
    }

    private void send() throws InterruptedException {
        byte[] body = options.body();
        Semaphore window = new Semaphore(SENDS_IN_FLIGHT);
        AtomicLong sent = new AtomicLong();
        while (sent.get() < wanted) {
            for (long left = wanted - sent.get(); left > 0; left--) {
                window.acquire();
                producer.sendAsync(options.message(body)).whenComplete((receipt, error) -> {
                    sent.addAndGet(error == null ? 1 : 0);
                    window.release();
                });
            }
            window.acquire(SENDS_IN_FLIGHT);
            window.release(SENDS_IN_FLIGHT);
        }
    }

    /** The threads that drain what is there. */
    private final class Round {
        private final Figures figures = new Figures();
        private final AtomicLong acknowledged = new AtomicLong();
        private final List<Thread> threads = new ArrayList<>();
        private final long started = System.nanoTime();
        private volatile long last = started;

        /** Returns with the last acknowledgement; threads may still wait for an empty topic. */
        private void run() throws InterruptedException {
            for (int i = 0; i < options.number("threads", 16); i++) {
                Thread thread = new Thread(this::drain);
                thread.start();
                threads.add(thread);
            }
            while (!isDone()) {
                Thread.sleep(2);
            }
        }

        private void join() throws InterruptedException {
            for (Thread thread : threads) {
                thread.join();
            }
        }

        private boolean isDone() {
            return acknowledged.get() >= wanted || System.nanoTime() - last > options.nanos("idle_s", 60);
        }

        private void drain() {
            while (!isDone()) {
                receive();
            }
        }

        private void receive() {
            try {
                consumer.receive(BATCH, INVISIBLE).forEach(this::acknowledge);
            } catch (ClientException error) {
                figures.failed(error);
                LockSupport.parkNanos(PAUSE_NANOS);
            }
        }

        private void acknowledge(MessageView message) {
            long asked = System.nanoTime();
            try {
                consumer.ack(message);
            } catch (ClientException error) { // it is handed out again
                figures.failed(error);
                return;
            }
            last = System.nanoTime();
            figures.took(last - asked);
            acknowledged.incrementAndGet();
        }

        private String result() {
            double seconds = Math.max(1, last - started) / (double) Arguments.NANOS;
            return Figures.format("{%s,\"seconds\":%.3f}", figures.json(seconds), seconds);
        }
    }
}
