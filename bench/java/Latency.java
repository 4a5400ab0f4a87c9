import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * From the time a send was due to the listener of a waiting push consumer, both stock and in this process, so that one
 * clock times both; prints WARM and END around what counts, and one JSON line.
 *
 * <p>Options NAME=VALUE: namesrv, topic, rate (sends a second), size, seconds, warmup_s. A late send counts from when it
 * was due: a stall is not hidden by what was not sent meanwhile.
 */
public final class Latency {
    private static final long PROBE = 0;
    private static final long DRAIN_NANOS = 5 * Options.NANOS;

    private final Options options;
    private final Figures figures = new Figures();
    private final AtomicLong acknowledged = new AtomicLong();
    private final AtomicLong probes = new AtomicLong();
    private final AtomicLong received = new AtomicLong();
    private volatile long warm = Long.MAX_VALUE;

    private Latency(Options options) {
        this.options = options;
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Latency latency = new Latency(options);
        latency.run();
        double seconds = options.nanos("seconds", 8) / (double) Options.NANOS;
        System.out.printf("{%s,\"acknowledged\":%d,\"received\":%d}%n", latency.figures.json(seconds),
                latency.acknowledged.get(), latency.received.get());
        System.exit(0);
    }

    private void run() throws Exception {
        DefaultMQProducer producer = options.producer();
        options.sendFirst(producer, body(PROBE));
        acknowledged.incrementAndGet();
        DefaultMQPushConsumer consumer = options.consumer();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            messages.forEach(message -> take(message, now));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (probes.get() == 0) {
            Thread.sleep(50);
        }
        sendAtRate(producer);
        long limit = System.nanoTime() + DRAIN_NANOS;
        while (received.get() < acknowledged.get() && System.nanoTime() < limit) {
            Thread.sleep(20);
        }
    }

    private void sendAtRate(DefaultMQProducer producer) {
        long started = System.nanoTime();
        warm = started + options.nanos("warmup_s", 3);
        long end = warm + options.nanos("seconds", 8);
        Options.markWindow(warm, end);
        long interval = Options.NANOS / options.number("rate", 1000);
        for (long due = started; due < end; due += interval) {
            while (System.nanoTime() < due) {
                LockSupport.parkNanos(due - System.nanoTime());
            }
            try {
                producer.send(new Message(options.text("topic"), body(due)), callback);
            } catch (Exception error) {
                figures.failed(error);
            }
        }
    }

    private final SendCallback callback = new SendCallback() {
        @Override
        public void onSuccess(SendResult result) {
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                acknowledged.incrementAndGet();
            } else {
                figures.failed(result.getSendStatus());
            }
        }

        @Override
        public void onException(Throwable error) {
            figures.failed(error);
        }
    };

    private byte[] body(long due) {
        byte[] body = options.body();
        ByteBuffer.wrap(body).putLong(due);
        return body;
    }

    private void take(MessageExt message, long now) {
        received.incrementAndGet();
        long due = ByteBuffer.wrap(message.getBody()).getLong();
        if (due == PROBE) {
            probes.incrementAndGet();
        } else if (due >= warm) {
            figures.took(now - due);
        }
    }
}
