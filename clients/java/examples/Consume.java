import gossipq.Client;
import gossipq.Message;

public final class Consume {
    public static void main(String[] words) {
        try (Client mq = new Client()) {
            mq.subscribe("orders", "kitchen");
            for (Message m = mq.next(5_000); m != null; m = mq.next(5_000)) {
                System.out.println(new String(m.key) + ": " + new String(m.value));
                mq.ack(m); // or mq.nack(m, "no milk"): then it comes again
            }
        }
    }
}
