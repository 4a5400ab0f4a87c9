import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/** The stock clients for gRPC, set up in the one way that the programs here share. */
final class GrpcOptions extends Arguments {
    private static final int FIRST_TRIES = 100;

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();

    /** An error that ends the calling thread then ends the program: the client's threads would keep it alive. */
    GrpcOptions(String[] arguments) {
        super(arguments);
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
    }

    private ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(text("endpoint")).enableSsl("true".equals(text("tls")))
                .setRequestTimeout(Duration.ofMillis(number("timeout_ms", 10_000))).build();
    }

    /** Retries off, so that a send is one send. */
    Producer producer() throws ClientException {
        return provider.newProducerBuilder().setClientConfiguration(configuration()).setTopics(text("topic"))
                .setMaxAttempts(1).build();
    }

    Message message(byte[] body) {
        return provider.newMessageBuilder().setTopic(text("topic")).setBody(body).build();
    }

    SimpleConsumer consumer() throws ClientException {
        return provider.newSimpleConsumerBuilder().setClientConfiguration(configuration())
                .setConsumerGroup(text("group")).setAwaitDuration(Duration.ofSeconds(1))
                .setSubscriptionExpressions(Map.of(text("topic"), FilterExpression.SUB_ALL)).build();
    }

    /** Sends until one message is taken. */
    void sendFirst(Producer producer, byte[] body) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                producer.send(message(body));
                return;
            } catch (ClientException error) {
                if (tries == FIRST_TRIES) {
                    throw error;
                }
            }
            Thread.sleep(200);
        }
    }
}
