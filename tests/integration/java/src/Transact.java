import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends transactions from {@code threads} threads, {@code count} in all, or till the file {@code stop} appears, and
 * lives on for checks till the file {@code end} does. A transaction's number says how it ends. With {@code go}, local
 * transactions last till that file is there.
 */
final class Transact implements TransactionListener {
    private static final int KINDS = 6;
    private final Options options;
    private final Report report;
    private final Map<Integer, AtomicInteger> checks = new ConcurrentHashMap<>();
    private final Set<Integer> failed = ConcurrentHashMap.newKeySet();

    private Transact(Options options, Report report) {
        this.options = options;
        this.report = report;
    }

    static void run(Options options) throws Exception {
        try (Report report = new Report(options.text("out", null))) {
            new Transact(options, report).run();
        }
    }

    private void run() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group", null), options.hook());
        producer.setNamesrvAddr(options.text("namesrv", null));
        producer.setPollNameServerInterval(options.number("poll_ms", 1000));
        producer.setHeartbeatBrokerInterval(options.number("poll_ms", 1000));
        producer.setSendMsgTimeout(2000);
        producer.setRetryTimesWhenSendFailed(0); // a repeated half message is another transaction
        producer.setTransactionListener(this);
        producer.start();
        connect(producer);
        int threads = options.number("threads", 1);
        AtomicInteger numbers = new AtomicInteger();
        ExecutorService senders = Executors.newFixedThreadPool(threads);
        for (int i = 0; i < threads; i++) {
            senders.submit(() -> send(producer, numbers));
        }
        senders.shutdown();
        senders.awaitTermination(5, TimeUnit.MINUTES);
        report.line("event", "sent");
        await(options.text("end", null));
        producer.shutdown();
    }

    /** Sends that all begin at once would share the time that connecting takes, and give up. */
    private void connect(TransactionMQProducer producer) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                producer.send(Samples.message(options.text("topic", null) + "Connect", "connect", 0));
                return;
            } catch (Exception error) {
                if (tries == 20) {
                    throw error;
                }
                sleep(500);
            }
        }
    }

    private void send(TransactionMQProducer producer, AtomicInteger numbers) {
        int count = options.number("count", Integer.MAX_VALUE);
        Path stop = Path.of(options.text("stop", "/nowhere"));
        for (int i = numbers.getAndIncrement(); i < count && !Files.exists(stop); i = numbers.getAndIncrement()) {
            try {
                Message message = Samples.message(options.text("topic", null), "transaction", i);
                TransactionSendResult result = producer.sendMessageInTransaction(message, i);
                report.line(
                        "event", "prepared",
                        "number", i,
                        "status", result.getSendStatus().name(),
                        "queue", result.getMessageQueue().getQueueId(),
                        "offset", result.getQueueOffset(),
                        "id", result.getTransactionId(),
                        "state", result.getLocalTransactionState().name());
            } catch (Exception error) {
                failed.add(i);
                report.line("event", "failed", "number", i, "error", String.valueOf(error.getMessage()));
                sleep(10);
            }
        }
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object number) {
        int n = (int) number;
        checks.put(n, new AtomicInteger());
        report.line("event", "executing", "number", n);
        if (options.isGiven("go")) {
            await(options.text("go", null));
        }
        switch (n % KINDS) {
            case 0:
                return LocalTransactionState.COMMIT_MESSAGE;
            case 1:
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case 5:
                throw new IllegalStateException("the local transaction's own failure");
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    /** A transaction whose send failed never runs, and is rolled back; one whose send has no answer yet may. */
    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int n = Integer.parseInt(message.getUserProperty("number"));
        AtomicInteger times = checks.get(n);
        LocalTransactionState unsent =
                failed.contains(n) ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        LocalTransactionState state = times == null ? unsent : answer(n, times.incrementAndGet());
        report.line(
                "event", "checked",
                "number", n,
                "state", state.name(),
                "topic", message.getTopic(),
                "queue", message.getQueueId(),
                "keys", message.getKeys(),
                "id", message.getTransactionId(),
                "times", message.getUserProperty("TRANSACTION_CHECK_TIMES"));
        return state;
    }

    private static LocalTransactionState answer(int number, int times) {
        switch (number % KINDS) {
            case 1:
            case 3:
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case 4:
                return times < 2 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
            default:
                return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    private static void await(String path) {
        while (!Files.exists(Path.of(path))) {
            sleep(20);
        }
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
