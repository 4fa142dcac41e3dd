package pid1

import (
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

func TestWanted(t *testing.T) {
	aliases, err := ParseAliases(strings.NewReader("# made by imagebuild\nalias pci:v00001AF4d00001041sv*sd*bc*sc*i* virtio_pci\nalias virtio:d00000001v* virtio_net\nbroken line\n"))
	if err != nil {
		t.Fatal(err)
	}
	sys := fstest.MapFS{
		"devices/pci0000:00/0000:00:01.0/modalias":         {Data: []byte("pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00\n")},
		"devices/pci0000:00/0000:00:01.0/virtio0/modalias": {Data: []byte("virtio:d00000001v00001AF4\n")},
		"devices/platform/x/modalias":                      {Data: []byte("platform:unknown\n")},
	}
	if got, want := Wanted(sys, aliases), []string{"virtio_net", "virtio_pci"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzParseAliases(f *testing.F) {
	f.Add("alias pci:v* x\n")
	f.Add("alias [ y\n")
	f.Fuzz(func(t *testing.T, s string) {
		a, _ := ParseAliases(strings.NewReader(s))
		Wanted(fstest.MapFS{"devices/a/modalias": {Data: []byte("pci:v1")}}, a)
	})
}
