import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A stock pull consumer reads a topic from its beginning in one thread, one queue after the other.
 *
 * <p>Options NAME=VALUE: namesrv, topic, batch (messages asked for at once), warmup_s (so long it reads before what
 * counts). Prints how many messages there were, their bytes, and the sum of the CRCs of those whose 16th byte is '0'.
 */
@SuppressWarnings("deprecation")
public final class Pull {
    private static final int SAMPLED_BY = 15;

    private final DefaultMQPullConsumer consumer;
    private final int batch;
    private long messages;
    private long bytes;
    private long sum;

    private Pull(DefaultMQPullConsumer consumer, int batch) {
        this.consumer = consumer;
        this.batch = batch;
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("bench_l" + System.nanoTime());
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(options.text("topic")));
        int batch = options.number("batch", 32);
        new Pull(consumer, batch).read(queues, System.nanoTime() + options.nanos("warmup_s", 3));
        Pull pull = new Pull(consumer, batch);
        long began = System.nanoTime();
        pull.read(queues, Long.MAX_VALUE);
        double seconds = (System.nanoTime() - began) / (double) Options.NANOS;
        System.out.println(Figures.format("{\"messages\":%d,\"bytes\":%d,\"sum\":%d,\"seconds\":%.3f}",
                pull.messages, pull.bytes, pull.sum, seconds));
        System.exit(0);
    }

    private void read(List<MessageQueue> queues, long until) throws Exception {
        for (MessageQueue queue : queues) {
            long offset = consumer.minOffset(queue);
            while (System.nanoTime() < until) {
                PullResult result = consumer.pull(queue, "*", offset, batch);
                if (result.getPullStatus() == PullStatus.NO_NEW_MSG) {
                    break;
                }
                if (result.getPullStatus() != PullStatus.FOUND) {
                    throw new IllegalStateException(queue + " at " + offset + ": " + result);
                }
                result.getMsgFoundList().forEach(this::take);
                offset = result.getNextBeginOffset();
            }
        }
    }

    private void take(MessageExt message) {
        byte[] body = message.getBody();
        messages++;
        bytes += body.length;
        if (body.length > SAMPLED_BY && body[SAMPLED_BY] == '0') {
            CRC32 crc = new CRC32();
            crc.update(body);
            sum += crc.getValue();
        }
    }
}
