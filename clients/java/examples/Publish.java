import gossipq.Client;

public final class Publish {
    public static void main(String[] words) {
        try (Client mq = new Client()) { // $GOSSIPQ_SERVER, or tcp://127.0.0.1:7700
            Client.Place stored = mq.publish("orders", "one coffee".getBytes(), "ada".getBytes());
            System.out.println("stored at offset " + stored.offset);
        }
    }
}
