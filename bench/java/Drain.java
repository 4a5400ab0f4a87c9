import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A stock push consumer drains a topic; prints WARM and END around what counts, and one JSON line. Each place in a queue
 * counts once.
 *
 * <p>Options NAME=VALUE: namesrv, topic, count (ends when so many came), idle_s (or when none came for so long), warmup_s
 * (so long it drains the topic before, again and again, each time as a new group).
 */
public final class Drain {
    private final Map<Integer, BitSet> seen = new TreeMap<>();
    private final long wanted;
    private long distinct;
    private long delivered;
    private long first;
    private long last = System.nanoTime();

    private Drain(long wanted) {
        this.wanted = wanted;
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        long warm = System.nanoTime() + options.nanos("warmup_s", 0);
        while (System.nanoTime() < warm) {
            new Drain(options.number("count", 1_000_000)).run(options);
        }
        System.out.println("WARM");
        String result = new Drain(options.number("count", 1_000_000)).run(options);
        System.out.println("END");
        System.out.println(result);
        System.exit(0);
    }

    private String run(Options options) throws Exception {
        DefaultMQPushConsumer consumer = options.consumer();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            take(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long started = System.nanoTime();
        consumer.start();
        while (!isDone(options.nanos("idle_s", 60))) {
            Thread.sleep(20);
        }
        consumer.shutdown();
        return result(started);
    }

    private synchronized void take(List<MessageExt> messages) {
        last = System.nanoTime();
        if (first == 0) {
            first = last;
        }
        for (MessageExt message : messages) {
            BitSet queue = seen.computeIfAbsent(message.getQueueId(), id -> new BitSet());
            int place = Math.toIntExact(message.getQueueOffset());
            delivered++;
            if (!queue.get(place)) {
                queue.set(place);
                distinct++;
            }
        }
    }

    private synchronized boolean isDone(long idleNanos) {
        return distinct >= wanted || System.nanoTime() - last > idleNanos;
    }

    private synchronized String result(long started) {
        double seconds = Math.max(1, last - first) / (double) Options.NANOS;
        return Figures.format("{\"messages\":%d,\"delivered\":%d,\"seconds\":%.3f,\"per_second\":%.1f,"
                        + "\"first_after_s\":%.3f}",
                distinct, delivered, seconds, distinct / seconds, (first - started) / (double) Options.NANOS);
    }
}
