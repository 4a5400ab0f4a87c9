import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.message.Message;

/** The messages of tests/integration/messages.py, built by the same rules. */
final class Samples {
    static final String WORD = "naïve ☕ 你好";
    private static final String[] TAGS = {"TagA", "TagB", "TagC"};
    private static final int SHARDS = 5;
    private static final int LARGE = 2000; // repeats; over 4 KiB the client compresses

    private Samples() {}

    static Message message(String topic, String kind, int number) throws Exception {
        String text = kind + "-" + number + ": Grüße, 世界 🚀";
        byte[] body = (kind.equals("large") ? text.repeat(LARGE) : text).getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, TAGS[number % TAGS.length], "key-" + kind + "-" + number, body);
        message.putUserProperty("number", Integer.toString(number));
        message.putUserProperty("word", WORD);
        return message;
    }

    static int shard(int number) {
        return number % SHARDS;
    }
}
