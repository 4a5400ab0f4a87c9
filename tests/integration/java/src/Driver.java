/** Drives the stock Java client: {@code Driver produce|consume|stream|transact|query namesrv=… topic=… group=… out=FILE …}. */
public final class Driver {
    private Driver() {}

    public static void main(String[] arguments) {
        int code = 1;
        try {
            Options options = new Options(arguments, 1);
            switch (arguments[0]) {
                case "produce":
                    new Produce(options).run();
                    break;
                case "stream":
                    new Stream(options).run();
                    break;
                case "transact":
                    Transact.run(options);
                    break;
                case "timers":
                    Timers.run(options);
                    break;
                case "query":
                    Query.run(options);
                    break;
                case "ask":
                    Requests.ask(options);
                    break;
                case "answer":
                    Requests.answer(options);
                    break;
                case "sends":
                    new Sends(options).run();
                    break;
                case "pulls":
                    new Pulls(options).run();
                    break;
                case "consumers":
                    new Consumers(options).run();
                    break;
                case "pop":
                    new Pops(options).run();
                    break;
                case "consume":
                    new Consume(options).run();
                    break;
                default:
                    throw new IllegalArgumentException("unknown action " + arguments[0]);
            }
            code = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        System.exit(code); // the client leaves threads behind
    }
}
