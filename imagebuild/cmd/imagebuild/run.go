package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/alecthomas/kong"

	"firstlight/imagebuild"
)

type commands struct {
	RAMDisk ramdiskCommand `cmd:"" name:"ramdisk" help:"Make the machine agent's RAM disk: vmlinuz, ramdisk.cpio.zst and inputs.json. The same inputs give the same bytes."`
	OS      osCommand      `cmd:"" name:"os" help:"Make the demo system as a raw disk image: GPT, EFI system partition, configuration partition, ext4 root with the node agent."`
	Pack    packCommand    `cmd:"" name:"pack" help:"Cut a raw disk image into compressed chunks and write the (unsigned) manifest."`
}

type ramdiskCommand struct {
	Agent     string `required:"" placeholder:"FILE" help:"Static machine-agent; it becomes /init."`
	KernelDir string `required:"" placeholder:"DIR" help:"Unpacked Debian linux-image package."`
	Out       string `required:"" placeholder:"DIR" help:"Where the results go."`
	JSON      bool   `name:"json" help:"Print the result as JSON."`
}

type osCommand struct {
	Agent      string `required:"" placeholder:"FILE" help:"Static machine-agent; it becomes the node agent."`
	KernelDir  string `required:"" placeholder:"DIR" help:"Unpacked Debian linux-image package."`
	Nonce      string `required:"" placeholder:"TEXT" help:"What the running system prints on its console to be known by."`
	Out        string `required:"" placeholder:"FILE" help:"The raw image; FILE.inputs.json lists its inputs."`
	Busybox    string `placeholder:"FILE" help:"Static busybox (${busybox})."`
	Bootloader string `placeholder:"FILE" help:"systemd-boot's EFI binary (${bootloader})."`
	GRUB       string `name:"grub" placeholder:"DIR" help:"GRUB's modules for BIOS machines (${grub})."`
	JSON       bool   `name:"json" help:"Print the result as JSON."`
}

type packCommand struct {
	Raw    string `required:"" placeholder:"FILE" help:"The raw disk image."`
	Name   string `required:"" placeholder:"NAME" help:"The image's name."`
	Inputs string `placeholder:"FILE" help:"List of the image's inputs (RAW.inputs.json, where it exists)."`
	Out    string `required:"" placeholder:"DIR" help:"Where manifest.json and blobs/ go."`
	JSON   bool   `name:"json" help:"Print the result as JSON."`
}

// run carries out one command line. Results go to stdout, progress to stderr.
func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) error {
	var c commands
	ended := false // by --help
	parser, err := kong.New(&c, kong.Name("imagebuild"), kong.Description("Makes RAM disks and disk images for Firstlight."),
		kong.Writers(stdout, stderr), kong.Exit(func(int) { ended = true }),
		kong.Vars{"busybox": imagebuild.DefaultBusybox, "bootloader": imagebuild.DefaultBootloader, "grub": imagebuild.DefaultGRUB})
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if ended {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w (imagebuild --help lists the commands)", err)
	}
	p := newPrinter(stderr)
	switch parsed.Selected().Name {
	case "ramdisk":
		return c.RAMDisk.run(ctx, stdout, p)
	case "os":
		return c.OS.run(ctx, stdout, p)
	default:
		return c.Pack.run(ctx, stdout, p)
	}
}

func (c ramdiskCommand) run(ctx context.Context, stdout io.Writer, p *printer) error {
	r, err := imagebuild.RAMDisk(ctx, imagebuild.RAMDiskConfig{Agent: c.Agent, KernelDir: c.KernelDir, Out: c.Out, Progress: p.progress})
	if err != nil {
		return err
	}
	return report(stdout, c.JSON, r, "%s: kernel %s\n%s  %s\n%s  %s\n", c.Out, r.KernelRelease,
		r.Kernel, filepath.Join(c.Out, imagebuild.KernelFile), r.RAMDisk, filepath.Join(c.Out, imagebuild.RAMDiskFile))
}

func (c osCommand) run(ctx context.Context, stdout io.Writer, p *printer) error {
	r, err := imagebuild.OS(ctx, imagebuild.OSConfig{Agent: c.Agent, KernelDir: c.KernelDir, Nonce: c.Nonce, Out: c.Out,
		Busybox: c.Busybox, Bootloader: c.Bootloader, GRUB: c.GRUB, Progress: p.progress})
	if err != nil {
		return err
	}
	return report(stdout, c.JSON, r, "%s: %d MiB, kernel %s, root %s\n", r.Image, r.RawSize>>20, r.KernelRelease, r.RootPARTUUID)
}

func (c packCommand) run(ctx context.Context, stdout io.Writer, p *printer) error {
	r, err := imagebuild.Pack(ctx, imagebuild.PackConfig{Raw: c.Raw, Name: c.Name, Inputs: c.Inputs, Out: c.Out, Progress: p.progress})
	if err != nil {
		return err
	}
	return report(stdout, c.JSON, r, "%s: %d chunks, %d of %d bytes, %d stored, manifest %s\n", r.Name, r.Chunks, r.DataSize, r.RawSize, r.Stored, r.Manifest)
}

func report(w io.Writer, asJSON bool, result any, format string, args ...any) error {
	if !asJSON {
		_, err := fmt.Fprintf(w, format, args...)
		return err
	}
	b, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// printer turns progress into lines: one for each new thing, then one for each further tenth, at most one a second.
type printer struct {
	w     io.Writer
	what  string
	tenth int64
	last  time.Time
	now   func() time.Time
}

func newPrinter(w io.Writer) *printer { return &printer{w: w, now: time.Now} }

func (p *printer) progress(what string, done, total int64) {
	if what != p.what {
		p.what, p.tenth = what, 0
		if total == 0 {
			fmt.Fprintf(p.w, "imagebuild: %s\n", what)
			return
		}
	}
	if total == 0 {
		return
	}
	tenth := done * 10 / total
	if done < total && (tenth == p.tenth || p.now().Sub(p.last) < time.Second) {
		return
	}
	p.tenth, p.last = tenth, p.now()
	fmt.Fprintf(p.w, "imagebuild: %s %d of %d MiB\n", what, done>>20, total>>20)
}
