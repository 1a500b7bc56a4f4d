package gossipq

// Against a node at $GOSSIPQ_SERVER that answers as tests/bindings/test_faults.py says.

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

const soon = 10 * time.Second

func open(t *testing.T) *Client {
	mq, err := Open(os.Getenv("GOSSIPQ_SERVER"))
	if err != nil {
		t.Fatal(err)
	}
	return mq
}

// A client with a subscription, until the test ends.
func subscribed(t *testing.T) (context.Context, *Subscription) {
	mq := open(t)
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(func() {
		cancel()
		mq.Close()
	})
	s, err := mq.Subscribe(ctx, "t", "g")
	if err != nil {
		t.Fatal(err)
	}
	return ctx, s
}

func within(t *testing.T, what string, call func()) {
	ended := make(chan struct{})
	go func() {
		call()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(soon):
		t.Fatal(what, " hangs")
	}
}

func ended(t *testing.T, name string, call func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	within(t, name, func() {
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Error(name, err)
		}
	})
}

// A subscription whose owner has given it up is ended.
func TestAbandoned(t *testing.T) {
	mq := open(t)
	ended(t, "Subscribe", func(ctx context.Context) error { _, err := mq.Subscribe(ctx, "t", "g"); return err })
	within(t, "Close", func() { mq.Close() })
}

// The node does not answer: each call ends with its context, and other callers can use the client.
func TestSilence(t *testing.T) {
	mq := open(t)
	ended(t, "Subscribe", func(ctx context.Context) error { _, err := mq.Subscribe(ctx, "t", "g"); return err })
	ended(t, "Publish", func(ctx context.Context) error { _, err := mq.Publish(ctx, "t", Record{}); return err })
	posted := make(chan error)
	go func() {
		_, err := mq.Post("t", Record{})
		posted <- err
	}()
	time.Sleep(100 * time.Millisecond)
	within(t, "Close", func() { mq.Close() })
	within(t, "Post", func() {
		if err := <-posted; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// Answers take longer than a call may have the connection in its first turn.
func TestSlow(t *testing.T) {
	ctx, s := subscribed(t)
	if _, err := s.client.Publish(ctx, "u", Record{Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
}

// A subscription that waits for records does not hold up what is published.
func TestCrowded(t *testing.T) {
	const subscriptions, publishes, most = 8, 50, 2 * time.Second
	ctx, s := subscribed(t)
	mq := s.client
	for i := 0; i < subscriptions; i++ {
		each, err := mq.Subscribe(ctx, "t"+strconv.Itoa(i), "g")
		if err != nil {
			t.Fatal(err)
		}
		go each.Next(ctx)
	}
	began := time.Now()
	for i := 0; i < publishes; i++ {
		if _, err := mq.Publish(ctx, "u", Record{Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > most {
		t.Fatal(took)
	}
}

// A record that is refused while the client closes has an error that can be read.
func TestRefusedAtClose(t *testing.T) {
	mq := open(t)
	pending, err := mq.Post("t", Record{Value: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	mq.Close()
	var refused *Error
	if _, err = pending.Wait(context.Background()); !errors.As(err, &refused) || refused.Text != "it was refused while the client was closed" {
		t.Fatal(err)
	}
}

func TestHeaders(t *testing.T) {
	ctx, s := subscribed(t)
	for _, count := range []int{0, 0, 0, 0, 30000, 2} {
		message, err := s.Next(ctx)
		if err != nil || len(message.Headers) != count {
			t.Fatal(count, err)
		}
	}
}

func shownAgain(ctx context.Context, t *testing.T, s *Subscription) {
	var shown []string
	due := len(strings.Fields(os.Getenv("SHOWN_AGAIN")))
	for {
		wait := time.Second
		if len(shown) < due {
			wait = soon
		}
		short, cancel := context.WithTimeout(ctx, wait)
		message, err := s.Next(short)
		cancel()
		if err != nil {
			break
		}
		shown = append(shown, strconv.FormatInt(message.Offset, 10))
	}
	if found := strings.Join(shown, " "); found != os.Getenv("SHOWN_AGAIN") {
		t.Fatal(found)
	}
}

// An acked record is not delivered again, except records that other consumers had: $SHOWN_AGAIN.
func TestAgain(t *testing.T) {
	ctx, s := subscribed(t)
	for offset := int64(0); offset < 3; offset++ {
		message, err := s.Next(ctx)
		if err != nil || message.Offset != offset {
			t.Fatal(offset, err)
		}
		if offset < 2 {
			message.Ack()
		}
	}
	if err := s.Flush(ctx); err != nil && !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	shownAgain(ctx, t, s)
}

// Others have the second and the third record that are acked, and the last.
func TestLost(t *testing.T) {
	ctx, s := subscribed(t)
	for offset := 0; offset < 5; offset++ {
		message, err := s.Next(ctx)
		if err == nil {
			err = message.Ack()
		}
		if err != nil {
			t.Fatal(err)
		}
		if offset != 3 {
			continue
		}
		var lost *LostError
		if err = s.Flush(ctx); !errors.As(err, &lost) || !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
		if err.Error() != "others have these acked records by now: t/0/1 t/0/2" {
			t.Fatal(err)
		}
	}
	if err := s.Close(); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
}

// A failed record is not delivered before its pause ends, except records that other consumers had: $SHOWN_AGAIN.
func TestFailed(t *testing.T) {
	ctx, s := subscribed(t)
	message, err := s.Next(ctx)
	if err == nil {
		err = message.Nack(ctx, "x")
	}
	if err != nil && !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	shownAgain(ctx, t, s)
}

// Strings with a zero byte are refused, because C would cut them off there.
func TestZeros(t *testing.T) {
	mq := open(t)
	defer mq.Close()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for what, call := range map[string]func() error{
		"topic": func() error { _, err := mq.Publish(ctx, "t\x00x", Record{}); return err },
		"post":  func() error { _, err := mq.Post("t\x00x", Record{}); return err },
		"route": func() error { _, err := mq.PublishWith(ctx, "t", How{Route: "a\x00b"}, Record{}); return err },
		"header": func() error {
			_, err := mq.Publish(ctx, "t", Record{Headers: map[string][]byte{"a\x00": nil}})
			return err
		},
		"source": func() error { _, err := mq.Subscribe(ctx, "t\x00x", "g"); return err },
		"group":  func() error { _, err := mq.Subscribe(ctx, "t", "g\x00x"); return err },
		"server": func() error { _, err := Open("tcp://127.0.0.1:7700\x00x"); return err },
	} {
		var refused *Error
		if err := call(); !errors.As(err, &refused) || !strings.HasSuffix(refused.Text, "holds a zero byte") {
			t.Error(what, err)
		}
	}
	if _, err := mq.Publish(ctx, "t", Record{Headers: map[string][]byte{"a": {0}}, Key: []byte{0}, Value: []byte{0}}); err != nil {
		t.Error(err)
	}
}

func figure(t *testing.T, file, name string) int {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Skip(err)
	}
	_, rest, _ := strings.Cut(string(raw), name)
	number, _ := strconv.Atoi(strings.Fields(rest)[0])
	return number
}

// Clients that are closed leave nothing behind.
func TestManyClients(t *testing.T) {
	used := func() (int, int) {
		found, _ := os.ReadDir("/proc/self/fd")
		return figure(t, "/proc/self/status", "VmData:"), len(found)
	}
	var kb, files int
	for i := 0; i < 400; i++ {
		mq := open(t)
		if _, err := mq.Publish(context.Background(), "t", Record{Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		mq.Close()
		if i == 100 {
			kb, files = used()
		}
	}
	if more, open := used(); more-kb > 15000 || open > files+8 {
		t.Fatal(more-kb, "KB more,", open-files, "files more")
	}
}
