import java.util.HashMap;
import java.util.Map;

/** Command line of the form NAME=VALUE. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] arguments, int start) {
        for (int i = start; i < arguments.length; i++) {
            int split = arguments[i].indexOf('=');
            values.put(arguments[i].substring(0, split), arguments[i].substring(split + 1));
        }
    }

    String text(String name, String fallback) {
        String value = values.getOrDefault(name, fallback);
        if (value == null) {
            throw new IllegalArgumentException("option " + name + " is missing");
        }
        return value;
    }

    int number(String name, int fallback) {
        return Integer.parseInt(text(name, Integer.toString(fallback)));
    }

    boolean isGiven(String name) {
        return values.containsKey(name);
    }

    boolean isSet(String name) {
        return Boolean.parseBoolean(text(name, "false"));
    }
}
