import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

/** NAME=VALUE arguments, and what programs of all clients do with them. */
class Arguments {
    static final long NANOS = 1_000_000_000L;

    private final Map<String, String> values = new HashMap<>();

    Arguments(String[] arguments) {
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            values.put(argument.substring(0, split), argument.substring(split + 1));
        }
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    String text(String name) {
        return values.get(name);
    }

    int number(String name, int fallback) {
        return Integer.parseInt(values.getOrDefault(name, Integer.toString(fallback)));
    }

    long nanos(String name, double fallbackSeconds) {
        return (long) (Double.parseDouble(values.getOrDefault(name, Double.toString(fallbackSeconds))) * NANOS);
    }

    byte[] body() {
        byte[] body = new byte[number("size", 1024)];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    /** Prints WARM when what counts begins and END when it ends, both as {@link System#nanoTime}. */
    static void markWindow(long warm, long end) {
        Thread marker = new Thread(() -> {
            markAt("WARM", warm);
            markAt("END", end);
        });
        marker.setDaemon(true);
        marker.start();
    }

    private static void markAt(String mark, long nanos) {
        while (System.nanoTime() < nanos) {
            LockSupport.parkNanos(nanos - System.nanoTime());
        }
        System.out.println(mark);
    }
}
