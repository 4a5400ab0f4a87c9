import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Drives RocketMQ's Java client for gRPC: the actions and options of drivers/grpc_client.py. It speaks TLS, as by default. */
public final class GrpcDriver {
    private static final int KINDS = 3;
    private static final int SEND_TRIES = 20;
    private static final long LIMIT_MS = 60_000;

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Map<String, String> options;
    private final PrintWriter out;
    private final Set<String> taken = ConcurrentHashMap.newKeySet();

    private GrpcDriver(Map<String, String> options) throws IOException {
        this.options = options;
        out = new PrintWriter(Files.newBufferedWriter(Path.of(options.get("out"))), true);
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        GrpcDriver driver = new GrpcDriver(options);
        switch (args[0]) {
            case "send": driver.send(); break;
            case "simple": driver.simple(); break;
            case "push": driver.push(); break;
            case "transact": driver.transact(); break;
            default: throw new IllegalArgumentException(args[0]);
        }
        driver.write(Map.of("event", "end"));
        Runtime.getRuntime().halt(0);  // the client's threads may outlive it
    }

    private int count() { return Integer.parseInt(options.get("count")); }
    private String topic() { return options.get("topic"); }

    private ClientConfiguration configuration() {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(options.get("endpoint"));
        return builder.enableSsl(!"false".equals(options.get("ssl"))).build();
    }

    private Map<String, FilterExpression> subscription() {
        String sql = options.get("sql");
        FilterExpression expression = sql == null
            ? new FilterExpression(options.getOrDefault("filter", "*"), FilterExpressionType.TAG)
            : new FilterExpression(sql, FilterExpressionType.SQL92);
        return Map.of(topic(), expression);
    }

    private Message message(int number) {
        MessageBuilder builder = provider.newMessageBuilder().setTopic(topic()).setKeys("key" + number)
            .setBody(Integer.toString(number).getBytes(StandardCharsets.UTF_8))
            .addProperty("number", Integer.toString(number));
        if (options.get("tag") != null) {
            builder.setTag(options.get("tag"));
        }
        if ("fifo".equals(options.get("kind"))) {
            builder.setMessageGroup("group" + number % 3);
        }
        if ("delay".equals(options.get("kind"))) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + Long.parseLong(options.get("delayMs")));
        }
        return builder.build();
    }

    private void send() throws Exception {
        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topic()).build();
        SendReceipt receipt = null;
        for (int number = 0; number < count(); number++) {
            Message message = message(number);
            for (int attempt = 0; attempt < SEND_TRIES; attempt++) {
                try {
                    receipt = producer.send(message);
                } catch (Exception error) {
                    write(Map.of("event", "failed", "body", "" + number, "error", error.toString()));
                    Thread.sleep(200);
                    continue;
                }
                write(Map.of("event", "sent", "body", "" + number, "id", receipt.getMessageId().toString()));
                break;
            }
            Thread.sleep(Long.parseLong(options.getOrDefault("pauseMs", "0")));
        }
        if (options.get("recall") != null) {
            String id = producer.recallMessage(topic(), receipt.getRecallHandle()).getMessageId().toString();
            write(Map.of("event", "recalled", "id", id));
        }
        producer.close();
    }

    /** The client tries an acknowledgement once; a message without one comes again. */
    private boolean isAcknowledged(SimpleConsumer consumer, MessageView message) throws Exception {
        try {
            consumer.ack(message);
            return true;
        } catch (Exception error) {
            write(Map.of("event", "failed", "error", error.toString()));
            return false;
        }
    }

    private void simple() throws Exception {
        SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(options.get("group")).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(subscription()).build();
        write(Map.of("event", "ready"));
        Duration invisible = Duration.ofSeconds(Long.parseLong(options.getOrDefault("invisibleS", "15")));
        long end = System.currentTimeMillis() + LIMIT_MS;
        for (int left = count(); left > 0 && System.currentTimeMillis() < end;) {
            List<MessageView> messages;
            try {
                messages = consumer.receive(16, invisible);
            } catch (Exception error) {
                write(Map.of("event", "failed", "error", error.toString()));
                Thread.sleep(200);
                continue;
            }
            for (MessageView message : messages) {
                seen("received", message);
                held();
                if (body(message).equals(options.get("change")) && message.getDeliveryAttempt() == 1) {
                    consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                    continue;
                }
                left -= isAcknowledged(consumer, message) && counts(message) ? 1 : 0;
            }
        }
        consumer.close();
    }

    private static void await(String file) throws InterruptedException {
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (!Files.exists(Path.of(file)) && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
    }

    private void held() throws InterruptedException {
        if (options.get("hold") != null) {
            await(options.get("hold"));
        }
    }

    /** With distinct, a message that comes again does not count. */
    private boolean counts(MessageView message) {
        return taken.add(body(message)) || options.get("distinct") == null;
    }

    private void push() throws Exception {
        AtomicInteger failures = new AtomicInteger(Integer.parseInt(options.getOrDefault("times", "0")));
        CountDownLatch left = new CountDownLatch(count());
        PushConsumer consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(options.get("group")).setSubscriptionExpressions(subscription())
            .setMessageListener(message -> {
                seen("received", message);
                if (counts(message)) {
                    left.countDown();
                }
                boolean fails = body(message).equals(options.get("fail")) && failures.getAndDecrement() > 0;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        write(Map.of("event", "ready"));
        left.await(LIMIT_MS, TimeUnit.MILLISECONDS);
        Thread.sleep(1_000);  // what ends the last message is sent after the listener has returned
        consumer.close();
    }

    private void transact() throws Exception {
        ProducerBuilder builder = provider.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topic());
        Producer producer = builder.setTransactionChecker(message -> {
            seen("checked", message);
            boolean commits = Integer.parseInt(body(message)) % KINDS == 2;
            return commits ? TransactionResolution.COMMIT : TransactionResolution.UNKNOWN;
        }).build();
        List<Transaction> transactions = new ArrayList<>();
        for (int number = 0; number < count(); number++) {
            Transaction transaction = producer.beginTransaction();
            SendReceipt receipt = producer.send(message(number), transaction);
            write(Map.of("event", "prepared", "body", "" + number, "id", receipt.getMessageId().toString()));
            transactions.add(transaction);
        }
        held();
        for (int number = 0; number < count(); number++) {
            if (number % KINDS == 0) {
                transactions.get(number).commit();
            } else if (number % KINDS == 1) {
                transactions.get(number).rollback();
            }
        }
        await(options.get("end"));
        producer.close();
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private void seen(String event, MessageView message) {
        Map<String, Object> fields = new TreeMap<>();
        fields.put("event", event);
        fields.put("body", body(message));
        fields.put("id", message.getMessageId().toString());
        fields.put("topic", message.getTopic());
        fields.put("tag", message.getTag().orElse(null));
        fields.put("keys", new TreeSet<>(message.getKeys()));
        fields.put("properties", message.getProperties());
        fields.put("group", message.getMessageGroup().orElse(null));
        fields.put("attempt", message.getDeliveryAttempt());
        write(fields);
    }

    private synchronized void write(Map<String, ?> fields) {
        out.println(json(fields));
    }

    private static String json(Object value) {
        StringBuilder text = new StringBuilder();
        if (value instanceof Map) {
            ((Map<?, ?>) value).forEach((key, each) -> text.append(',').append(json(key)).append(':').append(json(each)));
            return "{" + (text.length() > 0 ? text.substring(1) : "") + "}";
        }
        if (value instanceof Iterable) {
            ((Iterable<?>) value).forEach(each -> text.append(',').append(json(each)));
            return "[" + (text.length() > 0 ? text.substring(1) : "") + "]";
        }
        if (value instanceof String) {
            return '"' + ((String) value).replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + '"';
        }
        return String.valueOf(value);
    }
}
