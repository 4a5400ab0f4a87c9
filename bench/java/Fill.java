import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Puts `count` messages into a topic as fast as batches allow: what a consumer is then measured with.
 *
 * <p>Options NAME=VALUE: namesrv, topic, count, size, threads, batch. Prints {"acknowledged":N}.
 */
public final class Fill {
    private final Options options;
    private final DefaultMQProducer producer;
    private final AtomicLong left;
    private final LongAdder acknowledged = new LongAdder();
    private final byte[] body;

    private Fill(Options options) throws Exception {
        this.options = options;
        body = options.body();
        producer = options.producer();
        options.sendFirst(producer, body);
        acknowledged.increment();
        left = new AtomicLong(options.number("count", 1_000_000) - 1);
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Fill fill = new Fill(options);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < options.number("threads", 8); i++) {
            Thread thread = new Thread(fill::send);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.printf("{\"acknowledged\":%d}%n", fill.acknowledged.sum());
        System.exit(0);
    }

    private void send() {
        int batch = options.number("batch", 100);
        while (true) {
            long before = left.getAndAdd(-batch);
            if (before <= 0) {
                return;
            }
            int size = (int) Math.min(batch, before);
            List<Message> messages = Collections.nCopies(size, body).stream()
                    .map(one -> new Message(options.text("topic"), one)).toList();
            try {
                if (producer.send(new ArrayList<>(messages)).getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("not stored on enough nodes");
                }
                acknowledged.add(size);
            } catch (Exception error) {
                left.addAndGet(size); // sent again: the consumer counts what is there
            }
        }
    }
}
