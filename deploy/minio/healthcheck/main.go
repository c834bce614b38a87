// healthcheck asks the MinIO of its container whether it serves: exit status 0, or 1 and why not.
//
//	healthcheck [https://127.0.0.1:9000]
package main

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"time"
)

func main() {
	server := "http://127.0.0.1:9000"
	if len(os.Args) > 1 {
		server = os.Args[1]
	}
	if err := check(server); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(server string) error {
	// It talks to its own host and sends no secret: whose certificate that is does not matter.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := http.Client{Timeout: 5 * time.Second, Transport: transport}
	answer, err := client.Get(server + "/minio/health/ready")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", server, answer.Status)
	}
	return nil
}
