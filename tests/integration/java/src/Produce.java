import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends so many samples of each kind: sync, large, async, oneway, batch, ordered. */
final class Produce {
    private static final int BATCH = 10;
    private static final int ASYNC_IN_FLIGHT = 64;
    private static final int ONEWAY_BURST = 50;
    private final Options options;
    private final String topic;
    private final DefaultMQProducer producer;

    Produce(Options options) throws ReflectiveOperationException {
        this.options = options;
        topic = options.text("topic", null);
        producer = new DefaultMQProducer(options.text("group", null), options.hook());
        options.connect(producer);
        producer.setSendMsgTimeout(10_000); // on a busy machine the first send alone can take the usual three seconds
    }

    void run() throws Exception {
        producer.start();
        try (Report report = new Report(options.text("out", null))) {
            sync(report, "sync");
            sync(report, "large");
            async(report, options.number("async", 0));
            oneway(report, options.number("oneway", 0));
            batch(report, options.number("batch", 0));
            ordered(report, options.number("ordered", 0));
        }
        producer.shutdown();
    }

    private void sync(Report report, String kind) throws Exception {
        for (int i = 0; i < options.number(kind, 0); i++) {
            Message message = Samples.message(topic, kind, i);
            if (options.isGiven("delay_level")) {
                message.setDelayTimeLevel(options.number("delay_level", 0));
            }
            sent(report, kind, i, producer.send(message));
        }
    }

    private void async(Report report, int count) throws Exception {
        Semaphore window = new Semaphore(ASYNC_IN_FLIGHT);
        CountDownLatch done = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            window.acquire();
            producer.send(Samples.message(topic, "async", i), callback(report, i, window, done));
        }
        if (!done.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(done.getCount() + " asynchronous sends got no answer");
        }
    }

    private SendCallback callback(Report report, int number, Semaphore window, CountDownLatch done) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent(report, "async", number, result);
                window.release();
                done.countDown();
            }

            @Override
            public void onException(Throwable error) {
                report.line("kind", "async", "number", number, "status", error.toString());
                window.release();
                done.countDown();
            }
        };
    }

    /** One-way sends have no answer to wait for; a send with one now and then keeps the client's buffer short. */
    private void oneway(Report report, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            producer.sendOneway(Samples.message(topic, "oneway", i));
            report.line("kind", "oneway", "number", i);
            if (i % ONEWAY_BURST == ONEWAY_BURST - 1) {
                Thread.sleep(5);
            }
        }
    }

    private void batch(Report report, int count) throws Exception {
        for (int first = 0; first < count; first += BATCH) {
            List<Message> messages = new ArrayList<>();
            for (int i = first; i < Math.min(first + BATCH, count); i++) {
                messages.add(Samples.message(topic, "batch", i));
            }
            SendResult result = producer.send(messages);
            for (int i = 0; i < messages.size(); i++) {
                stored(report, "batch", first + i, result, result.getQueueOffset() + i);
            }
        }
    }

    private void ordered(Report report, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message message = Samples.message(topic, "ordered", i);
            SendResult result =
                    producer.send(message, (queues, m, shard) -> queues.get((int) shard % queues.size()), Samples.shard(i));
            sent(report, "ordered", i, result);
        }
    }

    private static void sent(Report report, String kind, int number, SendResult result) {
        stored(report, kind, number, result, result.getQueueOffset());
    }

    private static void stored(Report report, String kind, int number, SendResult result, long offset) {
        report.line(
                "kind", kind,
                "number", number,
                "status", result.getSendStatus().name(),
                "queue", result.getMessageQueue().getQueueId(),
                "offset", offset);
    }
}
