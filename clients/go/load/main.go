// load TOPIC RECORDS BATCH SIZE publishes to the node at $GOSSIPQ_SERVER until the last confirm, and prints the rate. BATCH records go in
// each call; with 1 the client packs them. perf/bindings.py runs it.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"time"

	"gossipq"
)

const pool = 8

func main() {
	topic := os.Args[1]
	var numbers [3]int
	for i := range numbers {
		numbers[i], _ = strconv.Atoi(os.Args[2+i])
	}
	records, batch, size := numbers[0], numbers[1], numbers[2]
	var batches [pool][]gossipq.Record
	for i := range batches {
		for k := 0; k < batch; k++ {
			value := make([]byte, size)
			rand.Read(value)
			batches[i] = append(batches[i], gossipq.Record{Value: value})
		}
	}
	ctx := context.Background()
	mq, err := gossipq.Open()
	if err == nil {
		_, err = mq.Publish(ctx, topic, gossipq.Record{Value: []byte("x")}) // connect to the leader before the clock starts
	}
	start := time.Now()
	var last *gossipq.Pending
	for n := 0; n < records/batch && err == nil; n++ {
		last, err = mq.Post(topic, batches[n%pool]...)
	}
	if err == nil && last != nil {
		err = mq.FlushAll(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("{\"published_per_s\": %.0f}\n", float64(records)/time.Since(start).Seconds())
	mq.Close()
}
