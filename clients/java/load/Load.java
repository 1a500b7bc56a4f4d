import gossipq.Client;

/** Load TOPIC RECORDS BATCH SIZE: publishes to the node at $GOSSIPQ_SERVER, one record and its confirm after the other. */
public final class Load {
    public static void main(String[] words) {
        int records = Integer.parseInt(words[1]);
        byte[] value = new byte[Integer.parseInt(words[3])], none = new byte[0];
        try (Client mq = new Client()) {
            mq.publish(words[0], value, none); // the way to the leader is no part of it
            long start = System.nanoTime();
            for (int i = 0; i < records; i++) mq.publish(words[0], value, none);
            System.out.printf("{\"published_per_s\": %d}%n", (long) (records / ((System.nanoTime() - start) / 1e9)));
        }
    }
}
