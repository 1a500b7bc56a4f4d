import gossipq.Client;
import gossipq.GossipqException;
import gossipq.Message;

/** Runs against the scripted node of tests/bindings/test_faults.py and prints the code that each call ends with. An argument selects
 * another case. "again" (test_repeats.py) prints the acked record and the records after it. "failed" does the same with a failed record,
 * "large" with large records. "interrupted" prints the result of an interrupt. "gone" prints the results when the consumed topic is
 * deleted. */
public final class Faults {
    public static void main(String[] words) {
        if (words[0].equals("gone")) {
            gone(words[1]);
            return;
        }
        if (words[0].equals("interrupted")) {
            interrupted(words[1]);
            return;
        }
        if (words[0].equals("large")) {
            try (Client mq = new Client(words[1]).waiting(2_500)) {
                for (int i = 0; i < 4; i++) say(() -> mq.publish("large", new byte[4 << 20], new byte[0]));
            }
            return;
        }
        if (words.length > 1) {
            again(words[0].equals("failed"), words[1]);
            return;
        }
        try (Client mq = new Client(words[0].split(",")).waiting(Integer.parseInt(System.getenv("WAIT_MS")))) {
            say(() -> mq.publish("t", new byte[] {1}, new byte[0]));
            say(() -> mq.subscribe("t", "g"));
            say(() -> mq.publish("t", new byte[] {1}, new byte[0]));
        }
    }

    private static void again(boolean failed, String server) {
        try (Client mq = new Client(server).waiting(10_000)) {
            mq.subscribe("t", "g");
            Message first = mq.next(10_000);
            System.out.println(first.offset + " " + (failed ? mq.nack(first, "x") : mq.ack(first)));
            for (Message each = mq.next(500); each != null; each = mq.next(500)) System.out.println(each.offset);
        }
    }

    private static void gone(String server) {
        Client mq = new Client(server).waiting(10_000);
        mq.subscribe("t", "g");
        Message first = mq.next(10_000), second = mq.next(10_000);
        say(() -> mq.publish("u", new byte[] {1}, new byte[0])); // then t is gone
        say(() -> mq.publish("u", new byte[] {1}, new byte[0]));
        say(() -> mq.ack(first));
        say(() -> mq.next(1_000));
        say(() -> mq.ack(second));
        say(() -> mq.publish("t", new byte[] {1}, new byte[0]));
        say(() -> mq.subscribe("t", "g")); // it was made anew
        say(() -> mq.next(100));
        say(() -> mq.publish("*", new byte[] {1}, new byte[0]));
        say(() -> mq.publish("u", new byte[18 << 20], new byte[0]));
        mq.close();
        say(() -> mq.next(100));
    }

    private static void interrupted(String server) {
        Client mq = new Client(server);
        mq.subscribe("t", "g");
        Thread here = Thread.currentThread();
        new Thread(() -> {
            try {
                Thread.sleep(300);
            } catch (InterruptedException error) {
                return;
            }
            here.interrupt();
        }).start();
        say(() -> mq.next(50_000));
        say(() -> mq.publish("t", new byte[] {1}, new byte[0])); // nothing is sent
        say(Thread::interrupted);
        say(() -> mq.publish("t", new byte[] {1}, new byte[0]));
        here.interrupt();
        mq.close();
        System.out.println(here.isInterrupted());
    }

    private static void say(Runnable call) {
        try {
            call.run();
            System.out.println("done");
        } catch (GossipqException error) {
            System.out.println(error.code());
        } catch (IllegalStateException error) {
            System.out.println("closed");
        }
    }
}
