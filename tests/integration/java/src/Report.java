import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** A file of JSON objects, one a line, flushed line by line: what the test reads. */
final class Report implements AutoCloseable {
    private final PrintWriter out;

    Report(String path) throws Exception {
        out = new PrintWriter(Files.newBufferedWriter(Path.of(path), StandardCharsets.UTF_8), true);
    }

    /** Writes one object from name, value, name, value …; numbers stay numbers, null stays null. */
    synchronized void line(Object... pairs) {
        StringBuilder text = new StringBuilder("{");
        for (int i = 0; i < pairs.length; i += 2) {
            text.append(i == 0 ? "" : ",").append(quoted(pairs[i])).append(':').append(value(pairs[i + 1]));
        }
        out.println(text.append('}'));
    }

    @Override
    public void close() {
        out.close();
    }

    private static String value(Object value) {
        return value == null || value instanceof Number ? String.valueOf(value) : quoted(value);
    }

    private static String quoted(Object value) {
        StringBuilder text = new StringBuilder("\"");
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < ' ') {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        return text.append('"').toString();
    }
}
