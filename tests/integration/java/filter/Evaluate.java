import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * Has RocketMQ's own filter answer. One case a line on the standard input: the expression, then names and values of
 * properties, all in Base64 with tabs between them. One word a line comes back: refused, error, true, false or null.
 */
public final class Evaluate {
    private Evaluate() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", -1);
            Map<String, Object> properties = new HashMap<>();
            for (int i = 1; i + 1 < parts.length; i += 2) {
                properties.put(text(parts[i]), text(parts[i + 1]));
            }
            out.println(answer(text(parts[0]), properties));
        }
        out.flush();
    }

    private static String answer(String expression, Map<String, Object> properties) {
        Expression compiled;
        try {
            compiled = SelectorParser.parse(expression);
        } catch (Exception error) {
            return "refused";
        }
        try {
            return String.valueOf(compiled.evaluate(new Properties(properties)));
        } catch (Throwable error) {
            return "error";
        }
    }

    private static String text(String encoded) {
        return new String(Base64.getDecoder().decode(encoded), StandardCharsets.UTF_8);
    }

    /** What a message offers to a filter. */
    private static final class Properties implements EvaluationContext {
        private final Map<String, Object> values;

        Properties(Map<String, Object> values) {
            this.values = values;
        }

        @Override
        public Object get(String name) {
            return values.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return values;
        }
    }
}
