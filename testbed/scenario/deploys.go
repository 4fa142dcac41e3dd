package scenario

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"sync"

	"firstlight/testbed/fault"
	"firstlight/testbed/judge"
)

// tooSmall is less than the demo image needs, in bytes.
const tooSmall = 64 << 20

func tooLargeImageScenario() Scenario {
	return Scenario{Name: "too-large-image", What: "the image is larger than the disk: refused before the first byte of it is written (DEP-01)",
		Firmware: []string{BIOS, UEFI}, outcome: OutcomeFailed, machines: []box{{disks: []drive{{size: tooSmall}}}},
		drive: func(ctx context.Context, r *run) error {
			if err := r.order(ctx, r.machine, "wipe"); err != nil {
				return err
			}
			return r.follow(ctx, r.machine, following{paused: func(context.Context, string) (bool, error) {
				r.judgePause(r.machine, "wipe")
				return false, nil
			}})
		},
		judge: func(ctx context.Context, r *run) error {
			if err := r.pause(ctx); err != nil {
				return err
			}
			r.add(judge.Failed(r.record, "deploy", regexp.MustCompile(fmt.Sprintf(`(?i)larger than the disk.*%d.*%d`, r.image.Manifest.RawSize, int64(tooSmall))))...)
			now, err := r.counters(ctx)
			if err != nil {
				return err
			}
			before := r.stats["wipe"]
			r.add(judge.Of("deploy: nothing was written", len(before) == 1 && now[0].WriteOps == before[0].WriteOps, "%d writes at the wipe's end, %d at the end", before[0].WriteOps, now[0].WriteOps))
			r.add(judge.AllZero("deploy: the disk is empty", r.disk().path, 0, 0))
			return nil
		}}
}

// stumbles are how many answers in a row a shaky server owes for each third chunk, counted by path.
const stumbles = 2

func http503Scenario() Scenario {
	var p *fault.Proxy
	var mu sync.Mutex
	asked := map[string]int{}
	blobs := 0
	return Scenario{Name: "http-503-in-the-middle", What: "the site's HTTP server answers 503 in the middle of a deploy: the machine asks again, and becomes active",
		Firmware: []string{BIOS, UEFI}, machines: []box{{disks: []drive{{size: smallDisk}}}},
		setup: func(r *run) (err error) {
			chunks := map[string]bool{}
			for i, c := range r.image.Manifest.Chunks {
				chunks["/blob/"+c.Compressed.String()] = i%3 == 1
			}
			p, err = r.proxy(fault.Spoil{Match: func(string) bool { return false }, Refuse: func(path string) int {
				mu.Lock()
				defer mu.Unlock()
				if !chunks[path] {
					return 0
				}
				if asked[path]++; asked[path] > stumbles {
					return 0
				}
				blobs++
				return http.StatusServiceUnavailable
			}})
			return err
		},
		drive: func(ctx context.Context, r *run) error {
			if err := r.order(ctx, r.machine, "deploy"); err != nil {
				return err
			}
			return r.follow(ctx, r.machine, following{paused: func(ctx context.Context, _ string) (bool, error) {
				r.judgeTarget(ctx, r.machine)
				return false, nil
			}})
		},
		judge: func(ctx context.Context, r *run) error {
			mu.Lock()
			refused, chunks := blobs, len(asked)
			mu.Unlock()
			r.add(judge.Of("fault was met", refused >= stumbles && refused == stumbles*chunks && len(p.Spoiled()) == refused,
				"%d answers 503 for %d chunks of %d", refused, chunks, len(r.image.Manifest.Chunks)))
			if r.record.State != "active" {
				return nil
			}
			return r.judgeActive(ctx, r.machine)
		}}
}
