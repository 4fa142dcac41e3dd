package tftp

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"firstlight/site/internal/tftp/tftptest"
)

// BenchmarkFiftyClients moves 1 MiB to each of 50 clients at once, with the block sizes that firmware asks for. The clients share
// the processors with the server.
func BenchmarkFiftyClients(b *testing.B) {
	const clients, size = 50, 1 << 20
	for _, block := range []string{"512", "1468"} {
		b.Run(block, func(b *testing.B) {
			at, rec, dir := start(b, 1500, 0)
			if err := os.WriteFile(filepath.Join(dir, "ipxe"), make([]byte, size), 0o644); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(clients * size)
			for b.Loop() {
				var all sync.WaitGroup
				for i := range clients {
					all.Go(func() {
						// One address each, as the machines of a rack have.
						from := net.IPv4(127, 0, 100, byte(i))
						if got, err := tftptest.FetchFrom(from, at.String(), "ipxe", "blksize", block, "tsize", "0"); err != nil || len(got) != size {
							b.Errorf("got %d bytes, %v", len(got), err)
						}
					})
				}
				all.Wait()
				for range clients {
					rec.next(b)
				}
			}
		})
	}
}
