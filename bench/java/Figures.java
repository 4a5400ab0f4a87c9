import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLongArray;

/** Latencies in buckets of 10 µs up to 10 s, and errors by their words. */
final class Figures {
    private static final int BUCKET_NANOS = 10_000;
    private static final int BUCKETS = 1_000_000;
    private static final int TEXT_MAX = 120;
    private static final double[] SHARES = {0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 1};

    private final AtomicLongArray latencies = new AtomicLongArray(BUCKETS);
    private final Map<String, Integer> errors = new TreeMap<>();

    void took(long nanos) {
        latencies.incrementAndGet((int) Math.max(0, Math.min(nanos / BUCKET_NANOS, BUCKETS - 1)));
    }

    /** An exception counts by its innermost cause's words: the client's own say only that it gave up. */
    synchronized void failed(Object error) {
        Object innermost = error;
        while (innermost instanceof Throwable thrown) {
            innermost = thrown.getCause() != null ? thrown.getCause() : thrown.getMessage();
        }
        String text = String.valueOf(innermost).replaceAll("\\d+", "N").replaceAll("[^\\w :.,-]", "?");
        errors.merge(text.substring(0, Math.min(TEXT_MAX, text.length())), 1, Integer::sum);
    }

    long count() {
        long count = 0;
        for (int i = 0; i < BUCKETS; i++) {
            count += latencies.get(i);
        }
        return count;
    }

    /** In ms, with two decimals; null of none. */
    String percentile(double share) {
        long wanted = (long) Math.ceil(count() * share);
        long seen = 0;
        for (int i = 0; i < BUCKETS; i++) {
            seen += latencies.get(i);
            if (seen >= wanted && seen > 0) {
                return format("%.2f", (i + 1L) * BUCKET_NANOS / 1e6);
            }
        }
        return "null";
    }

    /** The fields of a JSON object, without its braces. */
    String json(double seconds) {
        long messages = count();
        StringBuilder curve = new StringBuilder();
        for (double share : SHARES) {
            curve.append(curve.length() == 0 ? "" : ",").append(format("[%s,%s]", share, percentile(share)));
        }
        StringBuilder failures = new StringBuilder();
        errors.forEach((text, count) -> failures.append(failures.length() == 0 ? "" : ",")
                .append('"').append(text).append("\":").append(count));
        return format("\"messages\":%d,\"per_second\":%.1f,\"p50_ms\":%s,\"p99_ms\":%s,\"p999_ms\":%s,"
                        + "\"max_ms\":%s,\"curve\":[%s],\"errors\":{%s}",
                messages, messages / seconds, percentile(0.5), percentile(0.99), percentile(0.999),
                percentile(1), curve, failures);
    }

    static String format(String pattern, Object... values) {
        return String.format(Locale.ROOT, pattern, values);
    }
}
