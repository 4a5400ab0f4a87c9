import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin's commands one after another in one process. A line of input is a command, its words in Base64 and
 * separated by blanks; a line of output what the command printed, in Base64, in the order of the input.
 *
 * <p>The next command begins when the one before has come to its end and shuts its client down: that waits for a
 * thread which looks up every 3 s. `@for MS COMMAND` ends a command that prints for ever after so long; beside
 * mqadmin's own there are `@consume GROUP TOPIC` and `@produce GROUP TOPIC COUNT`, which start clients that run until
 * the end; `@consumed GROUP` tells how many messages one of them had, `@help` mqadmin's own list.
 */
public final class RunCommands {
    private static final long LOOK_INTERVAL_MS = 5;
    private static final long INTERRUPT_INTERVAL_MS = 50;
    private static final List<Runnable> ENDINGS = new ArrayList<>();
    private static final Map<String, AtomicInteger> CONSUMED = new ConcurrentHashMap<>();
    private static final InheritableThreadLocal<OutputStream> PRINTED = new InheritableThreadLocal<>();

    private RunCommands() {}

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.namesrv.addr", args[0]);
        long limitMs = Long.parseLong(args[1]);
        PrintStream answers = System.out;
        PrintStream split = new PrintStream(new Split(System.err), true, StandardCharsets.UTF_8);
        System.setOut(split);
        System.setErr(split);
        BlockingQueue<Job> jobs = new LinkedBlockingQueue<>();
        Thread answering = new Thread(() -> answer(jobs, answers));
        answering.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Job job = new Job(decode(line), limitMs);
            job.start();
            jobs.add(job);
            job.awaitWork();
        }
        jobs.add(new Job(List.of(), 0));
        answering.join();
        ENDINGS.forEach(Runnable::run);
        System.exit(0);
    }

    private static List<String> decode(String line) {
        List<String> words = new ArrayList<>();
        for (String word : line.trim().split(" ")) {
            words.add(new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8));
        }
        return words;
    }

    private static void answer(BlockingQueue<Job> jobs, PrintStream answers) {
        try {
            for (Job job = jobs.take(); !job.words.isEmpty(); job = jobs.take()) {
                job.awaitEnd();
                answers.println(Base64.getEncoder().encodeToString(job.printed.toByteArray()));
                answers.flush();
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** What a thread prints goes to the command that it, or whoever started it, runs. */
    private static final class Split extends OutputStream {
        private final OutputStream other;

        Split(OutputStream other) {
            this.other = other;
        }

        @Override
        public void write(int octet) throws java.io.IOException {
            OutputStream printed = PRINTED.get();
            (printed == null ? other : printed).write(octet);
        }

        @Override
        public void write(byte[] data, int from, int length) throws java.io.IOException {
            OutputStream printed = PRINTED.get();
            (printed == null ? other : printed).write(data, from, length);
        }
    }

    /** As a process of its own would: some commands keep what they made. */
    private static final class Startup extends MQAdminStartup {
        static void afresh(String[] words) {
            SUB_COMMANDS.clear();
            main0(words, null);
        }
    }

    private static final class Job extends Thread {
        private final List<String> words;
        private final long limitMs;
        private final ByteArrayOutputStream printed = new ByteArrayOutputStream();
        private volatile boolean isInterrupted;

        Job(List<String> words, long limitMs) {
            boolean isLimited = !words.isEmpty() && words.get(0).equals("@for");
            this.words = isLimited ? words.subList(2, words.size()) : words;
            this.limitMs = isLimited ? Long.parseLong(words.get(1)) : limitMs;
        }

        /** Wait until the command has ended, but for the shutting down of its client, or its time is up. */
        void awaitWork() throws InterruptedException {
            long endMs = System.currentTimeMillis() + limitMs;
            while (isAlive() && !isShuttingDown() && System.currentTimeMillis() < endMs) {
                Thread.sleep(LOOK_INTERVAL_MS);
            }
            if (isAlive() && !isShuttingDown()) {
                isInterrupted = true;
                interrupt();
            }
        }

        /** One interruption may be taken for a failed send, and be forgotten. */
        void awaitEnd() throws InterruptedException {
            while (isAlive()) {
                if (isInterrupted && !isShuttingDown()) {
                    interrupt();
                }
                join(INTERRUPT_INTERVAL_MS);
            }
        }

        private boolean isShuttingDown() {
            for (StackTraceElement frame : getStackTrace()) {
                if (frame.getMethodName().equals("shutdown") && frame.getClassName().endsWith("MQClientInstance")) {
                    return true;
                }
            }
            return false;
        }

        @Override
        public void run() {
            PRINTED.set(printed);
            try {
                execute(words);
            } catch (Exception error) {
                error.printStackTrace();
            }
        }

        private void execute(List<String> words) throws Exception {
            switch (words.get(0)) {
                case "@consume":
                    consume(words.get(1), words.get(2));
                    break;
                case "@produce":
                    produce(words.get(1), words.get(2), Integer.parseInt(words.get(3)));
                    break;
                case "@consumed":
                    System.out.println(CONSUMED.get(words.get(1)));
                    break;
                case "@help":
                    Startup.afresh(new String[0]);
                    break;
                default:
                    int before = printed.size();
                    Startup.afresh(words.toArray(new String[0]));
                    if (isInterrupted) {
                        dropTrace(before);
                    }
            }
        }

        /** The interruption that ended a command is printed too, and is no error of the command. */
        private void dropTrace(int before) {
            String all = printed.toString(StandardCharsets.UTF_8);
            int trace = all.indexOf("org.apache.rocketmq.tools.command.SubCommandException", before);
            if (trace >= 0 && all.contains("java.lang.InterruptedException")) {
                printed.reset();
                printed.writeBytes(all.substring(0, trace).getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    private static void consume(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(topic, "*");
        AtomicInteger count = CONSUMED.computeIfAbsent(group, name -> new AtomicInteger());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        ENDINGS.add(consumer::shutdown);
        System.out.println(consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
    }

    private static void produce(String group, String topic, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setInstanceName(group);
        producer.start();
        ENDINGS.add(producer::shutdown);
        for (int number = 0; number < count; number++) {
            Message message = new Message(topic, "TagA", "key-" + number, ("body-" + number).getBytes());
            SendResult result = producer.send(message);
            System.out.println(result.getOffsetMsgId() + " " + result.getMsgId());
        }
        producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
    }
}
