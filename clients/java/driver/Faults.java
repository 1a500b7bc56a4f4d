import gossipq.Client;
import gossipq.GossipqException;

/** Against a node that answers as tests/bindings/test_faults.py says: prints the code that each call ends with. */
public final class Faults {
    public static void main(String[] words) {
        try (Client mq = new Client(words[0]).waiting(2_000)) {
            say(() -> mq.publish("t", new byte[] {1}, new byte[0]));
            say(() -> mq.subscribe("t", "g"));
            say(() -> mq.publish("t", new byte[] {1}, new byte[0]));
        }
    }

    private static void say(Runnable call) {
        try {
            call.run();
            System.out.println("done");
        } catch (GossipqException error) {
            System.out.println(error.code());
        }
    }
}
