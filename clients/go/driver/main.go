// The Go client as a driver of `gossipq client conformance`: JSON lines in, JSON lines out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"gossipq"
)

type record struct {
	Partition int               `json:"partition"`
	Offset    int64             `json:"offset"`
	Attempt   int               `json:"attempt"`
	Value     []byte            `json:"value"`
	Key       []byte            `json:"key"`
	ID        []byte            `json:"id"`
	Headers   map[string][]byte `json:"headers"`
	Route     string            `json:"route"`
}

type said struct {
	Do, Topic, Group, Reason, Token, Door, Route, Flow string
	Servers                                            []string
	Records                                            []record
	Partition                                          int
	Offset                                             int64
	Apart                                              bool
	Wait                                               *bool
	Priority                                           *int
	WaitMs                                             int64 `json:"wait_ms"`
	DelayMs                                            int64 `json:"delay_ms"`
	TimeoutMs                                          int64 `json:"timeout_ms"`
}

type place struct {
	partition int
	offset    int64
}

type driver struct {
	mq   *gossipq.Client
	sub  *gossipq.Subscription
	held map[place]*gossipq.Message
}

func (d *driver) do(s said) (map[string]any, error) {
	ctx := context.Background()
	var err error
	switch s.Do {
	case "connect":
		if d.mq != nil {
			d.mq.Close()
		}
		d.mq, err = gossipq.OpenWith(gossipq.Options{Servers: s.Servers, Token: s.Token, Door: s.Door})
	case "publish":
		rows := make([]gossipq.Record, len(s.Records))
		for i, each := range s.Records {
			rows[i] = gossipq.Record{Value: each.Value, Key: each.Key, ID: each.ID, Headers: each.Headers}
		}
		if s.TimeoutMs > 0 {
			timed, cancel := context.WithTimeout(ctx, time.Duration(s.TimeoutMs)*time.Millisecond)
			defer cancel()
			ctx = timed
		}
		how := gossipq.How{Route: s.Route, Delay: time.Duration(s.DelayMs) * time.Millisecond, Flow: s.Flow, Priority: s.Priority}
		publish := d.mq.PublishWith
		if s.Apart {
			publish = d.publishEach
		}
		stored, err := publish(ctx, s.Topic, how, rows...)
		places := make([][2]int64, len(stored))
		for i, each := range stored {
			places[i] = [2]int64{int64(each.Partition), each.Offset}
		}
		return map[string]any{"places": places}, err
	case "subscribe":
		d.sub, err = d.mq.Subscribe(ctx, s.Topic, s.Group)
	case "next":
		return d.next(time.Duration(s.WaitMs) * time.Millisecond)
	case "ack":
		if err = d.held[place{s.Partition, s.Offset}].Ack(); err == nil && (s.Wait == nil || *s.Wait) {
			err = d.sub.Flush(ctx)
		}
	case "nack":
		err = d.held[place{s.Partition, s.Offset}].Nack(ctx, s.Reason)
	case "release":
		err = d.held[place{s.Partition, s.Offset}].Release(ctx)
	case "close":
		err = d.mq.Close()
	}
	return map[string]any{}, err
}

// publishEach publishes each record by a call of its own, all at the same time.
func (d *driver) publishEach(ctx context.Context, topic string, how gossipq.How, rows ...gossipq.Record) ([]gossipq.Place, error) {
	stored := make([]gossipq.Place, len(rows))
	failed := make(chan error, len(rows))
	for i := range rows {
		go func(i int) {
			places, err := d.mq.PublishWith(ctx, topic, how, rows[i])
			if err == nil {
				stored[i] = places[0]
			}
			failed <- err
		}(i)
	}
	var first error
	for range rows {
		if err := <-failed; err != nil && first == nil {
			first = err
		}
	}
	return stored, first
}

func (d *driver) next(wait time.Duration) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	m, err := d.sub.Next(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return map[string]any{"record": nil}, nil
	}
	if err != nil {
		return nil, err
	}
	d.held[place{m.Partition, m.Offset}] = m
	row := record{m.Partition, m.Offset, m.Attempt, m.Value, m.Key, m.ID, m.Headers, m.Route}
	return map[string]any{"record": row}, nil
}

func main() {
	d := &driver{held: map[place]*gossipq.Message{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<28)
	for lines.Scan() {
		var s said
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		answer, err := d.do(s)
		var refused *gossipq.Error
		if errors.As(err, &refused) {
			answer = map[string]any{"error": refused.Code, "message": refused.Text}
		} else if errors.Is(err, gossipq.ErrLost) {
			answer = map[string]any{"error": "lease_lost", "message": err.Error()}
		} else if err != nil {
			answer = map[string]any{"error": "error", "message": err.Error()}
		}
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
		if s.Do == "close" {
			return
		}
	}
}
