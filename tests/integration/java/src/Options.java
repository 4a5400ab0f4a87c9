import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** Command line of the form NAME=VALUE. */
final class Options {
    /** For a route or a heartbeat. Of the default 3 s a client that starts on a busy machine needs most to load itself. */
    private static final int PATIENT_MS = 15_000;

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

    /** Signs requests as the user that is given; null: there is none. RocketMQ 4 and 5 have the class in different jars. */
    RPCHook hook() throws ReflectiveOperationException {
        if (!isGiven("access_key")) {
            return null;
        }
        String place = "org.apache.rocketmq.acl.common.";
        Class<?> credentials = Class.forName(place + "SessionCredentials");
        Object user = credentials.getConstructor(String.class, String.class)
                .newInstance(text("access_key", null), text("secret_key", null));
        return (RPCHook) Class.forName(place + "AclClientRPCHook").getConstructor(credentials).newInstance(user);
    }

    /** Names the name server to a client whose start is not what is tested. */
    void connect(ClientConfig client) {
        client.setNamesrvAddr(text("namesrv", null));
        client.setMqClientApiTimeout(PATIENT_MS);
    }
}
